# lmtrain - see README.md. `make` builds build/lmtrain.
CC ?= gcc
CFLAGS ?= -O2 -g
WARN = -Wall -Wextra -Wshadow -Wconversion -Werror
ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE $(WARN) -ffp-contract=off -fno-strict-aliasing -pthread -Ilib $(CFLAGS)
LDLIBS = -lyaml -lcjson -lxxhash -lzstd -ldnnl -lgomp -lpmix -lmpi -lm -lpthread
LIB_SOURCES := $(sort $(wildcard lib/*/*.c lib/*/*/*.c))
LIB_OBJECTS := $(LIB_SOURCES:%.c=build/obj/%.o)
all: build/liblmtrain.a
build/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@
build/liblmtrain.a: $(LIB_OBJECTS)
	@rm -f $@
	ar rcs $@ $^
-include $(LIB_OBJECTS:.o=.d)
