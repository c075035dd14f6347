# mk/embed.mk - configs/, the sandbox's Python, and the page of `lmtrain report` inside the library: a generated
# source that lib/config/embedded.h describes.
#
# It belongs to liblmtrain.a, whose config reads it: everything that links the library, fuzzers too,
# then finds it.
#
# Charts of the page are drawn by Chart.js (MIT): Debian's libjs-chart.js, or the minified file that CHARTJS names,
# version 3.x. Without it lmtrain is built all the same, and `lmtrain report` says what is missing.

CHARTJS ?= $(firstword $(wildcard /usr/share/javascript/chart.js/chart.min.js /usr/share/nodejs/chart.js/dist/chart.min.js))
CHARTJS_COPY := $(if $(CHARTJS),build/gen/chart.min.js)

EMBED_FILES := $(sort $(wildcard configs/*/*.yaml) $(wildcard lib/report/page/*)) lib/eval/sandbox_driver.py $(CHARTJS_COPY)
EMBED_SOURCES := build/gen/embedded_configs.c

build/gen/chart.min.js: $(CHARTJS)
	@mkdir -p $(@D)
	@cp $< $@

build/gen/embedded_configs.c: scripts/embed mk/embed.mk $(EMBED_FILES)
	@scripts/embed $@ $(EMBED_FILES)

$(BUILD)/liblmtrain.a: $(BUILD)/obj/build/gen/embedded_configs.o
