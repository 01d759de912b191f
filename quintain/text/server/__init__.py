"""`quintain serve-text`: a server with the interface of OpenAI, on loopback, in front of a provider."""
