/*
 * nvml_script.h - GPUs that are not there, for tests: what test/device/nvml_stub.c plays
 */
#ifndef SUPPORT_NVML_SCRIPT_H
#define SUPPORT_NVML_SCRIPT_H

/* Group fixtures: the stand-in of NVML is this process' (and its children's), with a script. */
int nvml_script_begin(void **state);
int nvml_script_end(void **state);

/* From now on the GPUs are as these lines say (nvml_stub.c); in one exchange of the file.
 * Children, too, may call it. */
void nvml_script(const char *lines);

#endif
