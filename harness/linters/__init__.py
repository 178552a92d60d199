"""The engine's own linters, in the versions and with the settings that the engine has."""
