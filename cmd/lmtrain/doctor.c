/*
 * doctor.c - lmtrain doctor: what this machine has for training, and what is wrong
 */
#include "cmd.h"
#include "doctor_impl.h"

static int examine(bool as_json, const char *folder, struct arena *arena)
{
    struct doctor doctor = { .arena = arena };
    struct str out = { 0 };

    doctor_probe_machine(&doctor);
    doctor_probe_system(&doctor);
    doctor_probe_storage(&doctor, folder ? folder : ".");
    doctor_probe_software(&doctor);
    if (as_json)
        doctor_print_json(&out, &doctor);
    else
        doctor_print(&out, &doctor);
    int status = cmd_print(&out);
    if (status == 0 && doctor_count(&doctor, DOCTOR_PROBLEM) > 0)
        status = ERR_DEVICE;
    str_release(&out);
    return status;
}

/* What is only for --cluster. */
static int refuse_alone(const struct doctor_cluster *q, const char *path)
{
    const char *what = path         ? path
                       : q->hosts   ? "--hosts"
                       : q->ranks   ? "--ranks"
                       : q->is_full ? "--full"
                       : q->sets.n  ? "--set"
                                    : NULL;
    struct err err;

    if (!what)
        return 0;
    err_set(&err, ERR_CONFIG, "doctor: %s is for --cluster (hint: lmtrain doctor --cluster %s)",
            what, path ? path : "JOB.yaml");
    return cmd_fail(&err);
}

int cmd_doctor(int argc, char **argv)
{
    struct doctor_cluster q = { .ranks = 0 };
    const char *folder = NULL;
    bool is_cluster = false;
    const struct option table[] = {
        option_flag("json", &q.as_json, "print the result as one JSON object"),
        option_text("folder", &folder, "DIR",
                    "the folder whose file system is examined, such as output of a job; default: "
                    "the current one"),
        option_flag("cluster", &is_cluster,
                    "check all ranks of a job, or of --hosts, instead: products with known bits, "
                    "memory, disk and links, each compared with the median"),
        option_flag("full", &q.is_full,
                    "with --cluster: up to a minute for each check, and most of the memory, "
                    "instead of some seconds"),
        option_int("ranks", &q.ranks, "N", 1, 1000000,
                   "with --cluster: on N ranks; overrides ranks of the job"),
        option_text("hosts", &q.hosts, "FILE|HOST,...",
                    "with --cluster: on these hosts through ssh, as for pretrain"),
        cmd_option_set(&q.sets),
    };
    const struct options options = {
        .command = "lmtrain doctor",
        .arguments = "[JOB.yaml]",
        .summary = "Check this machine's hardware and software for training, and report problems "
                   "with remedies; with --cluster, check the devices and links of all ranks",
        .details = "JOB.yaml is for --cluster: its device, dtype, threads, ranks, output and "
                   "preflight are used.\n"
                   "Exit status: 0 if it can train, 2 if the command line is wrong, 4 if there is "
                   "a problem. With\n--cluster: 0; 1 something is slow, or the check failed; 2 "
                   "usage or job; 4 wrong bits, device or\nmemory; 5 a rank died.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0) {
        const char *path = arguments.n ? arguments.items[0] : NULL;

        status = is_cluster ? 0 : refuse_alone(&q, path);
        if (!status)
            status =
                is_cluster ? doctor_cluster(&q, path, &arena) : examine(q.as_json, folder, &arena);
    }
    arena_release(&arena);
    return status;
}
