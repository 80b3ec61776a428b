"""The ipvs mode: virtual servers, and the fixed sets, rules and sysctls around them. Pure."""
