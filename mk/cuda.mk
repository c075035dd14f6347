# mk/cuda.mk - the GPU part, cuda/*.cu: CUDA=0 leaves it out, CUDA=1 demands it, and CUDA=auto takes it where there are
# nvcc (CUDA_HOME, or the PATH) and a GPU: compiling it takes minutes.
#
# cudart is linked statically; cuBLASLt, cuDNN and NCCL are opened at first use (cuda/library.cuh), so the binary starts
# where there is no driver. The same sources are compiled by g++ against cuda/emulate, for tests where there is no GPU.

CUDA_SOURCES := $(sort $(wildcard cuda/*.cu))
EMULATE_SOURCES := $(sort $(wildcard cuda/emulate/*.cc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))

ifeq ($(CUDA),auto)
override CUDA := $(if $(CUDA_HOME),$(if $(wildcard /dev/nvidia0),1,0),0)
endif

ifeq ($(CUDA),1)
ifeq ($(CUDA_HOME),)
$(error CUDA=1, but there is no nvcc in the PATH (hint: set CUDA_HOME))
endif
NVCC := $(CUDA_HOME)/bin/nvcc
# What machine code is made for: `make CUDA=1 CUDA_ARCH=90a`, several separated by blanks. sm_86 and sm_89 run sm_80's: kernels
# ask the device how much shared memory a block may have (test/cuda/arch_test.c).
CUDA_ARCH ?= 80 90a
NVCC_FLAGS ?= -O3 -lineinfo --compress-mode=size
NVCC_TARGETS = $(foreach arch,$(CUDA_ARCH),-gencode=arch=compute_$(arch),code=sm_$(arch))
NVCC_ALL = $(NVCC_FLAGS) -std=c++17 $(NVCC_TARGETS) -fmad=false -Ilib -I. -D_GNU_SOURCE -Xcompiler -Wall,-Wextra,-Wno-unused-function
CUDA_LIBS := $(CUDA_HOME)/lib64/libcudart_static.a -lstdc++ -lrt
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(BUILD)/obj/%.cu.o)

# C objects don't depend on them.
CUDA_FLAGS_TEXT = $(NVCC) $(NVCC_ALL)
$(BUILD)/cuda-flags.txt: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CUDA_FLAGS_TEXT)' | cmp -s - $@ || printf '%s\n' '$(CUDA_FLAGS_TEXT)' > $@

$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/cuda-flags.txt
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_ALL) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# `make cudnn-plans`: which plans cuDNN has for attention. It needs no GPU: test/cuda/driver.c is in the driver's place.
PLANS_OBJECTS := $(addprefix $(BUILD)/obj/,test/cuda/cudnn_plans.cu.o cuda/attention_graph.cu.o cuda/cudnn.cu.o cuda/library.cu.o)
$(BUILD)/test/cuda/cudnn_plans: $(PLANS_OBJECTS) $(BUILD)/liblmtrain.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(CUDA_LIBS) -lm -ldl -lpthread

$(BUILD)/test/cuda/libcuda.so.1: test/cuda/driver.c
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<

.PHONY: cudnn-plans
cudnn-plans: $(BUILD)/test/cuda/cudnn_plans $(BUILD)/test/cuda/libcuda.so.1
	$(Q)LD_LIBRARY_PATH=$(BUILD)/test/cuda:$$LD_LIBRARY_PATH $<
else ifneq ($(CUDA),0)
$(error CUDA is '$(CUDA)', not 0, 1 or auto)
endif

# ---- on the CPU ----------------------------------------------------------------------------------

ifeq ($(origin CXX),default)
CXX = g++
endif
EMULATE_OBJECTS := $(CUDA_SOURCES:%.cu=$(BUILD)/emulate/%.o) $(EMULATE_SOURCES:%.cc=$(BUILD)/emulate/%.o)
# A GPU cannot load or store a vector at an address that is no multiple of its size; a CPU mostly can. Not -fsanitize=shift:
# with it g++ 12 miscompiles `(uint32_t)(c ? x >> 32 : x)`, which the emulated mma has.
EMULATE_ALIGNMENT = $(if $(SANITIZE),,-fsanitize=alignment -fno-sanitize-recover=alignment)
# Lines for backtraces, but no variables (-g1): those take g++ a third of its time with these templates.
EMULATE_CFLAGS = -std=gnu++17 -DLMTRAIN_EMULATE -D_GNU_SOURCE -Icuda/emulate -Ilib -Itest -I. -Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas \
    -ffp-contract=off -fno-math-errno -fno-strict-aliasing -pthread $(CFLAGS) $(if $(filter -g,$(CFLAGS)),-g1) $(SANITIZE_FLAGS) $(EMULATE_ALIGNMENT)
EMULATE_LIBS = -lstdc++ $(EMULATE_ALIGNMENT)

$(BUILD)/emulate/%.o: %.cu $(BUILD)/flags.txt
	$(call say,EMU,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -x c++ $(EMULATE_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/emulate/%.o: %.cc $(BUILD)/flags.txt
	$(call say,EMU,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(EMULATE_CFLAGS) -MMD -MP -c $< -o $@
