# mk/cuda.mk - the GPU part, cuda/*.cu and cuda/*.c: CUDA=0 leaves it out, CUDA=1 demands it, and
# CUDA=auto takes it where cuda/ has sources and nvcc is found (CUDA_HOME, or the PATH).
#
# cuda/ has no sources yet, so auto is 0 for now and CUDA=1 is refused.

CUDA_SOURCES := $(sort $(wildcard cuda/*.cu cuda/*/*.cu))
CUDA_C_SOURCES := $(sort $(wildcard cuda/*.c cuda/*/*.c))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))

ifeq ($(CUDA),auto)
override CUDA := $(if $(CUDA_SOURCES),$(if $(CUDA_HOME),1,0),0)
endif

ifeq ($(CUDA),1)
ifeq ($(CUDA_SOURCES),)
$(error CUDA=1, but cuda/ has no sources yet: build with CUDA=0)
endif
ifeq ($(CUDA_HOME),)
$(error CUDA=1, but there is no nvcc in the PATH (hint: set CUDA_HOME))
endif
NVCC := $(CUDA_HOME)/bin/nvcc
NVCC_FLAGS ?= -O3 -g -lineinfo
CUDA_ARCH ?= native
CUDA_DEFINES := -DLMTRAIN_CUDA -isystem $(CUDA_HOME)/include
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublas -lcublasLt -lcudart -lstdc++
ifdef NCCL_HOME
CUDA_DEFINES += -DLMTRAIN_NCCL -isystem $(NCCL_HOME)/include
CUDA_LIBS += -L$(NCCL_HOME)/lib -Wl,-rpath,$(NCCL_HOME)/lib -lnccl
endif
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(BUILD)/obj/%.cu.o) $(CUDA_C_SOURCES:%.c=$(BUILD)/obj/%.o)
CUDA_FLAGS_TEXT := $(NVCC) $(NVCC_FLAGS) $(CUDA_ARCH)

$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags.txt
	@printf '  NVCC %s\n' $<
	@mkdir -p $(@D)
	@$(NVCC) $(NVCC_FLAGS) -arch=$(CUDA_ARCH) -Ilib -fmad=false -MMD -MP -c $< -o $@
else ifneq ($(CUDA),0)
$(error CUDA is '$(CUDA)', not 0, 1 or auto)
endif
