# mk/dist.mk - `make dist`: one folder that runs where nothing of ours is installed
#
# build/dist/lmtrain has bin/ (lmtrain, and gpu-tests: every test of ops in one program), lib/ (the libraries of
# Debian that they need, PMIx's and Open MPI's plugins), share/, scripts/gpu-check and gpu-first. All is found relative to itself:
# libraries by a run path that plugins inherit, plugins by what bin/lmtrain says of its place (cmd/lmtrain/main.c).
# glibc, the driver and NVIDIA's libraries are the machine's own.

DIST = $(BUILD)/dist/lmtrain

# One program of all tests that run on a GPU: each has the kernels but once.
GPU_TEST_NAMES := $(EMULATED_SOURCES:test/%.c=%)
GPU_TEST_OBJECTS := $(EMULATED_SOURCES:test/%.c=$(BUILD)/gpu-tests/%.o)

$(BUILD)/gpu-tests/%.o: $(BUILD)/obj/test/%.o
	$(Q)mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=test_main_$(subst /,_,$*) $< $@

$(BUILD)/gpu-tests/main.c: scripts/gpu-tests-main $(BUILD)/flags.txt $(EMULATED_SOURCES)
	$(Q)mkdir -p $(@D)
	$(Q)scripts/gpu-tests-main $(GPU_TEST_NAMES) > $@

$(BUILD)/gpu-tests/gpu-tests: $(BUILD)/gpu-tests/main.c $(GPU_TEST_OBJECTS) $(CUDA_OBJECTS) $(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(ALL_LDLIBS)

# The same with the emulated GPU, by which scripts/gpu-check is tried where there is none.
$(BUILD)/gpu-tests-emulated: $(BUILD)/gpu-tests/main.c $(GPU_TEST_OBJECTS) $(EMULATE_OBJECTS) $(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(ALL_LDLIBS) $(EMULATE_LIBS)

dist: $(BUILD)/lmtrain $(if $(filter 1,$(CUDA)),$(BUILD)/gpu-tests/gpu-tests)
	$(Q)scripts/dist $(DIST) $^

# A package for Debian, of HEAD: packaging/debian.
deb:
	@CUDA=$(filter 1,$(CUDA)) scripts/deb $(BUILD)/deb

.PHONY: dist deb
