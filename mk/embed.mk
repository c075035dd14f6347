# mk/embed.mk - configs/ and the sandbox's Python inside the library: a generated source that
# lib/config/embedded.h describes.
#
# It belongs to liblmtrain.a, whose config reads it: everything that links the library, fuzzers too,
# then finds it.

EMBED_FILES := $(sort $(wildcard configs/*/*.yaml)) lib/eval/sandbox_driver.py
EMBED_SOURCES := build/gen/embedded_configs.c

build/gen/embedded_configs.c: scripts/embed $(EMBED_FILES)
	@scripts/embed $@ $(EMBED_FILES)

$(BUILD)/liblmtrain.a: $(BUILD)/obj/build/gen/embedded_configs.o
