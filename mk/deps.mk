# mk/deps.mk - where the libraries are: pkg-config, or PMIX_HOME and MPI_HOME where they
# are named. Sets DEPS_CFLAGS, DEPS_LIBS and the target check-deps, which says how to get what is missing.
#
# Their headers come in by -isystem: our warnings are for our own code.

home_cflags = -isystem $(1)/include
home_libs = $(addprefix -L,$(wildcard $(1)/lib $(1)/lib64)) $(addprefix -Wl$(comma)-rpath$(comma),$(wildcard $(1)/lib $(1)/lib64))
comma := ,

PKG_CONFIG ?= pkg-config
DEPS_MODULES := yaml-0.1 libcjson libxxhash libzstd liblzma zlib hwloc libsodium libpcre2-8 libseccomp libedit

ifdef PMIX_HOME
PMIX_CFLAGS := $(call home_cflags,$(PMIX_HOME))
PMIX_LIBS := $(call home_libs,$(PMIX_HOME)) -lpmix
else
DEPS_MODULES += pmix
endif

# Code asks `#if LMTRAIN_MPI`.
MPI_DEFINES := -DLMTRAIN_MPI=$(MPI)
ifeq ($(MPI),1)
ifdef MPI_HOME
MPI_CFLAGS := $(call home_cflags,$(MPI_HOME))
MPI_LIBS := $(call home_libs,$(MPI_HOME)) -lmpi
else
DEPS_MODULES += ompi-c
endif
else ifneq ($(MPI),0)
$(error MPI is '$(MPI)', not 0 or 1)
endif

# Optional, for the file tier (lib/run/file_queue.h): code asks `#if LMTRAIN_URING`.
URING ?= $(shell $(PKG_CONFIG) --exists liburing && echo 1 || echo 0)
ifeq ($(URING),1)
DEPS_MODULES += liburing
endif

# One call for all of them; a missing library gives the empty text, and check-deps speaks.
PKG_TEXT := $(shell $(PKG_CONFIG) --cflags --libs $(DEPS_MODULES) 2>/dev/null)
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(filter -I% -D%,$(PKG_TEXT)))
PKG_LIBS := $(filter-out -I% -D%,$(PKG_TEXT))

DEPS_CFLAGS = $(MPI_DEFINES) -DLMTRAIN_URING=$(URING) $(PMIX_CFLAGS) $(MPI_CFLAGS) $(PKG_CFLAGS)
DEPS_LIBS = $(PMIX_LIBS) $(MPI_LIBS) $(PKG_LIBS)

check-deps:
ifeq ($(strip $(PKG_TEXT)),)
	@echo 'make: some of these libraries are missing: $(DEPS_MODULES)' >&2
	@scripts/bootstrap --print >&2
	@exit 2
endif
