# lmtrain - `make` builds build/lmtrain, `make help` lists the rest.
#
# Everything lands under $(BUILD). Objects depend on their flags, so changing CFLAGS, CC, MPI, CUDA or
# SANITIZE on the command line rebuilds what it must. Sanitizer and fuzz builds have folders of their own.

BUILD ?= build
PREFIX ?= /usr/local
MPI ?= 1
CUDA ?= auto
CFLAGS ?= -O2 -g
SANITIZE ?=
FUZZ_SECONDS ?= 60
FUZZ_RUNS ?= 10000000
TEST_JOBS ?= 2
TIMES = build/ci
ifeq ($(origin CC),default)
CC = gcc
endif

all: $(BUILD)/liblmtrain.a $(BUILD)/lmtrain

include mk/deps.mk
include mk/cuda.mk
-include mk/embed.mk

# ---- sources -------------------------------------------------------------------------------------

LIB_MODULES ?= *
LIB_SOURCES := $(sort $(wildcard $(foreach module,$(LIB_MODULES),lib/$(module)/*.c lib/$(module)/*/*.c)))
CMD_SOURCES := $(sort $(wildcard cmd/lmtrain/*.c))
CUDA_TEST_SOURCES := $(sort $(wildcard test/cuda/*_test.c))
TEST_SOURCES := $(sort $(filter-out $(CUDA_TEST_SOURCES),$(wildcard test/*/*_test.c)))
CPU_ONLY := $(addprefix test/kernels/,gemm_test.c vec_math_test.c state_codes_test.c reference_ops_test.c allocations_test.c kernels_test.c)
TEST_SUPPORT_SOURCES := $(sort $(wildcard test/support/*.c test/support/ops/*.c))
FUZZ_SOURCES := $(sort $(wildcard test/fuzz/*_fuzz.c))
ORACLE_SOURCES := $(sort $(wildcard test/oracle/*.c))
BENCH_SOURCES := $(sort $(wildcard bench/*.c))

objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
# PLAIN names the folder of a build with MPI, of whose objects MPI=0 takes those that are the same (scripts/lint/compile).
ifneq ($(PLAIN),)
ASKING_MPI := $(shell grep -rlw LMTRAIN_MPI --include='*.c' lib cmd test bench)
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter $(ASKING_MPI),$(1))) \
    $(patsubst %.c,$(PLAIN)/obj/%.o,$(filter-out $(ASKING_MPI),$(1)))
endif
LIB_OBJECTS := $(call objects,$(LIB_SOURCES))
CMD_OBJECTS := $(call objects,$(CMD_SOURCES))
SUPPORT_OBJECTS := $(call objects,$(TEST_SUPPORT_SOURCES))
MAIN_OBJECT := $(BUILD)/obj/cmd/lmtrain/main.o

# kernels' tests run on the emulated GPU, too; what is in test/cuda runs there alone.
EMULATED_SOURCES := $(filter-out $(CPU_ONLY),$(filter test/kernels/%,$(TEST_SOURCES))) $(CUDA_TEST_SOURCES)
EMULATOR_TEST := $(BUILD)/test/emulated/cuda/emulator_test
EMULATED_TESTS := $(if $(SANITIZE),,$(EMULATED_SOURCES:test/%.c=$(BUILD)/test/emulated/%) $(EMULATOR_TEST))
TESTS := $(TEST_SOURCES:%.c=$(BUILD)/%) $(EMULATED_TESTS)
ORACLES := $(ORACLE_SOURCES:%.c=$(BUILD)/%)
FUZZERS := $(FUZZ_SOURCES:%.c=$(BUILD)/%)

# ---- flags ---------------------------------------------------------------------------------------

# Bits must not depend on what the compiler feels like (design.md §5): no contraction, no fast-math.
WARN = -Wall -Wextra -Wshadow -Wconversion -Werror
BASE_CFLAGS = -std=gnu11 -D_GNU_SOURCE $(WARN) -ffp-contract=off -fno-math-errno \
    -fno-strict-aliasing -pthread -Ilib -Icmd/lmtrain -Itest -Ibuild/gen $(DEPS_CFLAGS)
# clang takes CHECK(!"cannot be") for a mistake.
ifneq ($(findstring clang,$(CC)),)
WARN += -Wno-string-conversion
endif
ifneq ($(SANITIZE),)
# Sanitizers make gcc see null pointers where there are none; warnings are lint's business.
SANITIZE_FLAGS = -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-error
ifeq ($(findstring clang,$(CC)),)
SANITIZE_FLAGS += -Wno-format-truncation -Wno-maybe-uninitialized
endif
endif
ALL_CFLAGS = $(BASE_CFLAGS) $(CFLAGS) $(SANITIZE_FLAGS)
ALL_LDFLAGS = $(LDFLAGS) $(SANITIZE_FLAGS) -pthread
ALL_LDLIBS = $(CUDA_LIBS) $(DEPS_LIBS) -lm -ldl -lpthread

# What one file gets on top: a kernel's name says which instructions it may use, and it is only
# entered after the CPU was asked for them.
isa_of = $(if $(filter %_avx512bf16.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma) \
    $(if $(filter %_avx512vbmi.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mfma) \
    $(if $(filter %_avx512.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma) \
    $(if $(filter %_avx2.c,$(1)),-mavx2 -mfma)
optimize_of = $(if $(filter $(if $(SANITIZE),$(INNER_LOOPS),lib/kernels/cpu/% lib/ckpt/convert_dtype.c lib/base/rng.c lib/weights/init_weights.c),$(1)),-O3)
# With -O1 three quarters of the time of sanitized tests go here: sums on the stack, each access checked.
INNER_LOOPS = lib/kernels/cpu/gemm_% lib/kernels/cpu/attention_product%
# Callers have AddressSanitizer check the operands of these as a whole (cpu_check_range).
UNCHECKED = lib/kernels/cpu/gemm_multiply_avx2.c lib/kernels/cpu/attention_product.c
unchecked_of = $(if $(SANITIZE),$(if $(filter $(UNCHECKED),$(1)),-fno-sanitize=address -fno-sanitize=undefined))

# ---- the library and the binary ------------------------------------------------------------------

$(BUILD)/lmtrain: $(CMD_OBJECTS) $(CUDA_OBJECTS) $(BUILD)/liblmtrain.a
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

# The whole binary with the emulated GPU: its commands are tested where there is none.
$(BUILD)/lmtrain-emulated: $(CMD_OBJECTS) $(EMULATE_OBJECTS) $(BUILD)/liblmtrain.a
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS) $(EMULATE_LIBS)

$(BUILD)/liblmtrain.a: $(LIB_OBJECTS)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# The commands without main(), so that tests can call them.
$(BUILD)/libcmd.a: $(filter-out $(MAIN_OBJECT),$(CMD_OBJECTS))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libsupport.a: $(SUPPORT_OBJECTS)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/obj/%.o: %.c $(BUILD)/flags.txt | check-deps build/gen/version.h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(call optimize_of,$<) $(call unchecked_of,$<) $(call isa_of,$<) -MMD -MP -c $< -o $@

# For `make lint`: every object, and every source only parsed.
ALL_SOURCES = $(LIB_SOURCES) $(CMD_SOURCES) $(EMBED_SOURCES) $(TEST_SOURCES) $(CUDA_TEST_SOURCES) $(TEST_SUPPORT_SOURCES) \
    $(BENCH_SOURCES) $(ORACLE_SOURCES) $(FUZZ_SOURCES) test/fuzz/driver.c
objects: $(call objects,$(ALL_SOURCES))
syntax: $(ALL_SOURCES:%.c=$(BUILD)/syntax/%.ok)

$(BUILD)/syntax/%.ok: %.c $(BUILD)/flags.txt | check-deps build/gen/version.h
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(call isa_of,$<) -fsyntax-only -MMD -MP -MF $(@:.ok=.d) -MT $@ $<
	$(Q)touch $@

# Rewritten only when they change, so that nothing is rebuilt for nothing.
FLAGS_TEXT = $(CC) $(ALL_CFLAGS) | $(ALL_LDFLAGS) $(DEPS_LIBS)
$(BUILD)/flags.txt: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(FLAGS_TEXT)' | cmp -s - $@ || printf '%s\n' '$(FLAGS_TEXT)' > $@

build/gen/version.h: FORCE
	@scripts/version $@

# ---- tests ---------------------------------------------------------------------------------------

# Tests are of the CPU, or of the emulated GPU, whatever CUDA is.
TEST_LIBS = $(BUILD)/libsupport.a $(BUILD)/liblmtrain.a
# Hundreds of them are linked: gold takes half of the time of the ordinary linker, which links what is installed.
TEST_LD := $(if $(shell command -v ld.gold),-fuse-ld=gold)
LINK_TEST = $(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) $(TEST_LD) -o $@ $^ -lcmocka $(ALL_LDLIBS)

$(BUILD)/test/%_test: $(BUILD)/obj/test/%_test.o $(TEST_LIBS)
	$(call say,LD,$@)
	$(LINK_TEST)

# NVML for tests, which play GPUs with it (test/support/nvml_script.h).
NVML_STUB = $(BUILD)/test/device/libnvidia-ml.so.1
$(NVML_STUB): test/device/nvml_stub.c $(BUILD)/flags.txt
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out $(SANITIZE_FLAGS),$(ALL_CFLAGS)) -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o $@ $<
$(addprefix $(BUILD)/test/,device/nvml_test device/gpu_watch_test launch/gpu_loss_test launch/watcher_test): | $(NVML_STUB)

# Those of kernels, and what is in test/cuda: once more with the emulated GPU in the CPU's place (test/support/on_cuda.cc).
$(BUILD)/test/emulated/%_test: $(BUILD)/obj/test/%_test.o $(BUILD)/emulate/test/support/on_cuda.o $(EMULATE_OBJECTS) $(TEST_LIBS)
	$(call say,LD,$@)
	$(LINK_TEST) $(EMULATE_LIBS)

# What the emulator sees of wrong kernels: they are its alone.
$(EMULATOR_TEST): $(BUILD)/emulate/test/cuda/emulator_test.o $(EMULATE_OBJECTS) $(TEST_LIBS)
	$(call say,LD,$@)
	$(LINK_TEST) $(EMULATE_LIBS)

# Only the tests of the commands depend on them.
$(BUILD)/test/cmd/%_test: $(BUILD)/obj/test/cmd/%_test.o $(BUILD)/libcmd.a $(TEST_LIBS)
	$(call say,LD,$@)
	$(LINK_TEST)

# What the scripts in scripts/bench measure with.
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/liblmtrain.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

# What test/oracle's scripts compare with libraries, where no command says it.
$(BUILD)/test/oracle/%: $(BUILD)/obj/test/oracle/%.o $(TEST_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

# Fuzz targets: with libFuzzer when SANITIZE names it, else with our own driver (random bytes, files).
FUZZ_DRIVER = $(if $(findstring fuzzer,$(SANITIZE)),,$(BUILD)/obj/test/fuzz/driver.o)
$(BUILD)/test/fuzz/%_fuzz: $(BUILD)/obj/test/fuzz/%_fuzz.o $(FUZZ_DRIVER) $(BUILD)/liblmtrain.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) $(TEST_LD) $(FUZZ_LDFLAGS) -o $@ $^ $(FUZZ_PLAIN) $(ALL_LDLIBS)

# The emulated programs are for tests of commands, which sanitized builds have none of.
EMULATED_PROGRAMS = $(if $(SANITIZE),,$(BUILD)/lmtrain-emulated $(BUILD)/gpu-tests-emulated)
test-build: all $(TESTS) $(FUZZERS) $(EMULATED_PROGRAMS) $(NVML_STUB) $(if $(SANITIZE),,$(call objects,$(BENCH_SOURCES)))

# One process a core, unless this make was told how many.
PARALLEL = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

# build/ci/TIER.times has seconds, and seconds of CPU, of each test; test/TIMES is made of them.
# A test that doesn't build is a failed test, not the end of all others: hence -k, and the runner is
# given every name that ought to be there.
ifeq ($(T),)
test:
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory $(PARALLEL) -k test-build || true
	@scripts/test-runner --jobs $(TEST_JOBS) --times $(TIMES)/test.times $(TESTS) $(FUZZERS) $(wildcard test/cli/*.sh)

golden:
	@echo 'make: which test? make golden T=program/fuse' >&2; exit 2
else
# `make test T=program/shard`, T=program (a folder), T=cli/plan (a script), or several in quotes. Tests of kernels run on the
# emulated GPU, too; T=emulated/kernels/norm is that one alone.
named = $(filter $(foreach t,$(T),$(BUILD)/test/$(t)_test $(BUILD)/test/$(t)/%_test $(BUILD)/test/emulated/$(t)_test \
    $(BUILD)/test/emulated/$(t)/%_test $(BUILD)/test/$(t)_fuzz $(BUILD)/test/$(t)/%_fuzz test/$(t).sh test/$(t)/%.sh),$(1))
NAMED_TESTS = $(call named,$(TESTS) $(FUZZERS))
NAMED_SCRIPTS = $(call named,$(wildcard test/cli/*.sh test/dist/*.sh test/soak/*.sh))
test:
	@[ -n '$(NAMED_TESTS)$(NAMED_SCRIPTS)' ] || { echo "make: no test is named $(T) (hint: T=MODULE/NAME as in test/MODULE/NAME_test.c, or T=cli/NAME)" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(PARALLEL) $(NAMED_TESTS) $(if $(NAMED_SCRIPTS),all $(EMULATED_PROGRAMS))
	@scripts/test-runner --jobs $(TEST_JOBS) $(NAMED_TESTS) $(NAMED_SCRIPTS)

# Golden texts (test/support/golden_text.h) of the named tests, written again: what git shows then is the change to review.
golden:
	@$(MAKE) --no-print-directory $(PARALLEL) $(NAMED_TESTS)
	@LMTRAIN_UPDATE_GOLDEN=1 scripts/test-runner --jobs $(TEST_JOBS) $(NAMED_TESTS)
	@git --no-pager diff --stat -- test
endif

# The GPU part for one kind of GPU, the folder of `make dist`, and what of it can be tried without one.
test-cuda:
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory $(PARALLEL) CUDA=1 CUDA_ARCH=90a dist $(EMULATED_PROGRAMS)
	@scripts/test-runner --jobs $(TEST_JOBS) --times $(TIMES)/cuda.times $(wildcard test/dist/*.sh)

test-oracle:
	@scripts/bootstrap
	@$(MAKE) --no-print-directory $(PARALLEL) all $(ORACLES)
	@scripts/test-oracle --jobs $(TEST_JOBS)

# T names tests of sanitized tiers, too: of a folder those that the tier has ($(2)), by its own name any unit test that may be
# sanitized so ($(1)).
ifeq ($(T),)
sanitized = $(sort $(2))
tier_times = --times $(TIMES)/$(1).times
else
sanitized = $(sort $(filter $(foreach t,$(T),test/$(t)/%_test.c),$(2)) $(filter $(foreach t,$(T),test/$(t)_test.c),$(1)))
want_named = @[ -n '$(1)' ] || { echo "make: $@ has no test named $(T) (hint: T=MODULE/NAME as in test/MODULE/NAME_test.c)" >&2; exit 2; }
endif

# These take minutes there each; what they run, the other laws and test/train run under ASan, too. make soak-asan runs them.
# Fuzz targets run under both sanitizers in `make fuzz`.
ASAN_SOAK := $(addprefix test/law/,law_test.c law_tensor_test.c law_context_test.c tuned_test.c states_test.c dynamic_test.c hold_test.c layouts_test.c) \
    test/cmd/tuned_test.c
ASAN_SOURCES := $(call sanitized,$(TEST_SOURCES),$(filter-out $(ASAN_SOAK),$(TEST_SOURCES)))
ASAN = BUILD=build/asan SANITIZE=address,undefined CFLAGS='-O1 -g1'
asan-build:
	@$(MAKE) --no-print-directory $(PARALLEL) -k $(ASAN) $(ASAN_SOURCES:%.c=build/asan/%)

asan:
	$(call want_named,$(ASAN_SOURCES))
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory asan-build || true
	@scripts/test-runner --jobs $(TEST_JOBS) --sanitized $(call tier_times,asan) $(ASAN_SOURCES:%.c=build/asan/%)

soak-asan:
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory $(PARALLEL) -k $(ASAN) $(ASAN_SOAK:%.c=build/asan/%)
	@scripts/test-runner --jobs $(TEST_JOBS) --sanitized --timeout 3600 $(ASAN_SOAK:%.c=build/asan/%)

# Only where threads meet: the pool, communicators and their worker, collectives and the ops that wait for them, the
# loader, the background save, hooks, the status file, what sends metrics to MLflow.
# Not with MPI or PMIx, whose own threads ThreadSanitizer cannot see.
TSAN_ABLE := $(filter-out %_mpi_test.c %_process_test.c,$(TEST_SOURCES))
TSAN_THREADS := $(wildcard test/comm/*_test.c test/progress/status_file_test.c test/report/mlflow_test.c test/train/hooks_test.c test/device/pool_test.c test/device/gpu_watch_test.c test/data/loader_test.c test/data/packs_test.c test/data/instruct_test.c \
    test/ckpt/*save*_test.c test/ckpt/read_ahead_test.c test/progress/progress_test.c test/run/collective*_test.c test/run/lifetimes_test.c test/run/offload_test.c)
TSAN_SOURCES := $(call sanitized,$(TSAN_ABLE),$(filter $(TSAN_ABLE),$(TSAN_THREADS)))
TSAN = BUILD=build/tsan SANITIZE=thread CFLAGS='-O1 -g1'
tsan-build:
	@$(MAKE) --no-print-directory $(PARALLEL) -k $(TSAN) $(TSAN_SOURCES:%.c=build/tsan/%)

tsan:
	$(call want_named,$(TSAN_SOURCES))
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory tsan-build || true
	@scripts/test-runner --jobs $(TEST_JOBS) --sanitized $(call tier_times,tsan) $(TSAN_SOURCES:%.c=build/tsan/%)

# Modules that read what comes from outside are sanitized and counted; what these call of the others is the plain
# build's, which is there anyway: kernels and trainers take clang longer than all else, and no target gets there.
FUZZ_MODULES = base ckpt config convert data eval launch layout report sweep template tokenizer
FUZZ = BUILD=build/fuzz SANITIZE=address,undefined,fuzzer-no-link FUZZ_LDFLAGS=-fsanitize=fuzzer \
    CFLAGS='-O1 -g1' CC=clang LIB_MODULES='$(FUZZ_MODULES)' FUZZ_PLAIN=build/liblmtrain.a
fuzz-build:
	@scripts/bootstrap --lint
	@$(MAKE) --no-print-directory $(PARALLEL) build/liblmtrain.a
	@$(MAKE) --no-print-directory $(PARALLEL) $(FUZZ) $(FUZZ_SOURCES:%.c=build/fuzz/%)

fuzz: fuzz-build
	@scripts/fuzz --seconds $(FUZZ_SECONDS) --seed 1 --jobs $(TEST_JOBS) $(FUZZ_SOURCES:%.c=build/fuzz/%)

soak:
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory $(PARALLEL) all
	@scripts/test-runner --jobs 1 --timeout 3600 $(filter-out test/soak/operations.sh,$(wildcard test/soak/*.sh))
	@scripts/test-runner --jobs 1 --timeout 72000 test/soak/operations.sh
	@$(MAKE) --no-print-directory soak-law
	@$(MAKE) --no-print-directory soak-asan
	@$(MAKE) --no-print-directory soak-fuzz

# Whole products of settings, of which `make test` has rows of pairs (test/support/pairs.h).
PAIRED_TESTS := $(patsubst %.c,$(BUILD)/%,$(sort $(shell grep -l 'pairs_build\|pairs_whole' test/law/*_test.c test/plan/*_test.c)))
soak-law:
	@scripts/bootstrap --test
	@$(MAKE) --no-print-directory $(PARALLEL) $(PAIRED_TESTS)
	@LMTRAIN_TEST_WHOLE=1 scripts/test-runner --jobs $(TEST_JOBS) --timeout 3600 --times $(BUILD)/soak-law.times $(PAIRED_TESTS)

# Hours: bench/results/fuzz.md has what came of it, rows as build/fuzz/table.md has them.
soak-fuzz: fuzz-build
	@scripts/fuzz --runs $(FUZZ_RUNS) --jobs $(TEST_JOBS) --table build/fuzz/table.md $(FUZZ_SOURCES:%.c=build/fuzz/%)

lint:
	@scripts/bootstrap --lint
	@scripts/lint/lint

format:
	@clang-format -i $$(scripts/lint/files '*.[ch]' '*.cu' '*.cuh' '*.cc')
	@scripts/lint/rows --mend

include mk/dist.mk

# ---- for people ----------------------------------------------------------------------------------

quickstart:
	@scripts/bootstrap
	@$(MAKE) --no-print-directory $(PARALLEL) all
	@scripts/quickstart

# Nothing here needs root: PREFIX=$HOME/.local, or DESTDIR=/some/stage for a package. Of what is
# listed nothing is generated but the completions, which the binary itself prints.
ROOT_DIR = $(DESTDIR)$(PREFIX)
SHARE_DIR = $(ROOT_DIR)/share/lmtrain
COMPLETION_DIR = $(ROOT_DIR)/share/bash-completion/completions
ZSH_DIR = $(ROOT_DIR)/share/zsh/site-functions
FISH_DIR = $(ROOT_DIR)/share/fish/vendor_completions.d
INSTALL_DIRS = $(addprefix $(ROOT_DIR),/bin /share /share/man /share/man/man1 /share/man/man5 /share/man/man7 /share/bash-completion /share/zsh /share/fish) \
    $(COMPLETION_DIR) $(ZSH_DIR) $(FISH_DIR) $(SHARE_DIR) $(addprefix $(SHARE_DIR)/,models devices clusters jobs families tasks slurm)
INSTALL_FILE = install -m 644

install: all
	for folder in $(INSTALL_DIRS); do \
	    [ -d "$$folder" ] || install -d -m 755 "$$folder" || exit 1; done
	install -m 755 $(BUILD)/lmtrain '$(ROOT_DIR)/bin/lmtrain'
	$(INSTALL_FILE) $(sort $(wildcard man/*.1)) '$(ROOT_DIR)/share/man/man1/'
	$(INSTALL_FILE) $(sort $(wildcard man/*.5)) '$(ROOT_DIR)/share/man/man5/'
	$(INSTALL_FILE) $(sort $(wildcard man/*.7)) '$(ROOT_DIR)/share/man/man7/'
	$(INSTALL_FILE) $(sort $(wildcard configs/models/*.yaml)) '$(SHARE_DIR)/models/'
	$(INSTALL_FILE) $(sort $(wildcard configs/devices/*.yaml)) '$(SHARE_DIR)/devices/'
	$(INSTALL_FILE) $(sort $(wildcard configs/clusters/*.yaml)) '$(SHARE_DIR)/clusters/'
	$(INSTALL_FILE) $(sort $(wildcard configs/jobs/*.yaml)) '$(SHARE_DIR)/jobs/'
	$(INSTALL_FILE) $(sort $(wildcard configs/families/*.yaml)) '$(SHARE_DIR)/families/'
	$(INSTALL_FILE) $(sort $(wildcard configs/tasks/*.yaml)) '$(SHARE_DIR)/tasks/'
	$(if $(wildcard scripts/slurm/*.sbatch),$(INSTALL_FILE) $(sort $(wildcard scripts/slurm/*.sbatch)) '$(SHARE_DIR)/slurm/')
	for shell in bash zsh fish; do $(BUILD)/lmtrain completion $$shell >$(BUILD)/lmtrain.$$shell || exit 1; done
	$(INSTALL_FILE) $(BUILD)/lmtrain.bash '$(COMPLETION_DIR)/lmtrain'
	$(INSTALL_FILE) $(BUILD)/lmtrain.zsh '$(ZSH_DIR)/_lmtrain'
	$(INSTALL_FILE) $(BUILD)/lmtrain.fish '$(FISH_DIR)/lmtrain.fish'

# What is ours goes; of the folders only those that are ours and empty.
uninstall:
	rm -f '$(ROOT_DIR)/bin/lmtrain' '$(COMPLETION_DIR)/lmtrain' '$(ZSH_DIR)/_lmtrain' '$(FISH_DIR)/lmtrain.fish' \
	    $(patsubst man/%.1,'$(ROOT_DIR)/share/man/man1/%.1',$(wildcard man/*.1)) \
	    $(patsubst man/%.5,'$(ROOT_DIR)/share/man/man5/%.5',$(wildcard man/*.5)) \
	    $(patsubst man/%.7,'$(ROOT_DIR)/share/man/man7/%.7',$(wildcard man/*.7)) \
	    $(patsubst configs/%,'$(SHARE_DIR)/%',$(wildcard configs/*/*.yaml)) \
	    $(patsubst scripts/slurm/%,'$(SHARE_DIR)/slurm/%',$(wildcard scripts/slurm/*.sbatch))
	rmdir $(addprefix $(SHARE_DIR)/,models devices clusters jobs families tasks slurm) '$(SHARE_DIR)' 2>/dev/null || true

clean:
	rm -rf build

# Commits of this clone are asked for their reason (scripts/hooks/commit-msg).
hooks:
	git config core.hooksPath scripts/hooks

help:
	@scripts/help

.PHONY: all objects syntax format test golden hooks test-build test-cuda test-oracle asan asan-build tsan tsan-build fuzz fuzz-build soak soak-law soak-asan soak-fuzz lint quickstart install uninstall clean help FORCE \
    check-deps
.SECONDARY:
.DELETE_ON_ERROR:
FORCE:

# `make V=1` shows the commands.
ifeq ($(V),1)
say =
Q =
else
say = @printf '  %-4s %s\n' $(1) $(2)
Q = @
endif

-include $(shell find $(BUILD)/obj $(BUILD)/emulate $(BUILD)/syntax -name '*.d' 2>/dev/null)
