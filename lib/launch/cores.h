/*
 * cores.h - which cores a rank may use
 */
#ifndef LAUNCH_CORES_H
#define LAUNCH_CORES_H

/*
 * The cores that the system lets this process use, dealt out to the ranks of the node in contiguous
 * shares: fills at most capacity core numbers, ascending, and returns how many. At least one; with
 * fewer cores than ranks several ranks get the same one.
 */
int launch_cores(int local_rank, int local_size, int *cores, int capacity);

#endif
