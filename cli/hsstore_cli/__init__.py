"""The command line of hsstore: parse options, make one library call, render its result."""
