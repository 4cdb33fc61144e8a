"""Hidden states from SGLang servers: a client that believes no answer it cannot account for."""
