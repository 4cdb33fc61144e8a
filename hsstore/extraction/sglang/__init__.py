"""Hidden states from real SGLang servers, none of which is believed unproven."""
