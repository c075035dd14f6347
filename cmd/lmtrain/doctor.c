/*
 * doctor.c - lmtrain doctor: what this machine has for training, and what is wrong
 */
#include "cmd.h"
#include "doctor_impl.h"

int cmd_doctor(int argc, char **argv)
{
    bool as_json = false;
    const struct option table[] = {
        option_flag("json", &as_json, "print the result as one JSON object"),
    };
    const struct options options = {
        .command = "lmtrain doctor",
        .summary = "Check this machine's hardware and software for training, and report problems "
                   "with remedies",
        .details =
            "Exit status: 0 if it can train, 2 if the command line is wrong, 4 if there is a "
            "problem.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };

    int status = cmd_parse(&options, argc, argv, &arguments, &arena);
    if (status < 0) {
        struct doctor doctor = { .arena = &arena };

        doctor_probe_machine(&doctor);
        doctor_probe_system(&doctor);
        doctor_probe_software(&doctor);
        if (as_json)
            doctor_print_json(&out, &doctor);
        else
            doctor_print(&out, &doctor);
        status = cmd_print(&out);
        if (status == 0 && doctor_count(&doctor, DOCTOR_PROBLEM) > 0)
            status = ERR_DEVICE;
    }
    str_release(&out);
    arena_release(&arena);
    return status;
}
