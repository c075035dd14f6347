#!/bin/bash
# test/cli/context-needles.sh - that test/soak/needles.sh runs: the same on texts of 1,024 tokens, too few steps to learn it
NEEDLES_TOKENS=1024 NEEDLES_SHORT=256 NEEDLES_STEPS='4 3 2' NEEDLES_TEST=2 NEEDLES_LEAST=0 exec bash test/soak/needles.sh
