/*
 * builtin.c - templates by name, for models that carry none
 *
 * The formats that the models were tuned with. Where a format has no place for a system message, it
 * goes in front of the first user's.
 */
#include <string.h>

#include "template/chat_impl.h"

/* The content of the first user's message with the system's before it, as `content`. */
#define MERGE_SYSTEM \
    "{%- set ns = namespace(system='') -%}\n" \
    "{%- for message in messages -%}\n" \
    "{%- set content = message.content -%}\n" \
    "{%- if message.role == 'system' -%}\n" \
    "{%- set ns.system = message.content + '\\n\\n' -%}\n" \
    "{%- elif message.role == 'user' -%}\n" \
    "{%- set content = ns.system + content -%}\n" \
    "{%- set ns.system = '' -%}\n" \
    "{%- endif -%}\n"

#define CHATML \
    "{%- for message in messages -%}\n" \
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n" \
    "{%- endfor -%}\n" \
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"

#define MISTRAL \
    "{{- bos_token -}}" MERGE_SYSTEM \
    "{%- if message.role == 'user' -%}{{- '[INST] ' + content + ' [/INST]' -}}\n" \
    "{%- elif message.role == 'assistant' -%}{{- content + eos_token -}}{%- endif -%}\n" \
    "{%- endfor -%}"

static const struct {
    const char *name, *text;
} builtins[] = {
    { "alpaca", "{{- bos_token -}}\n"
                "{%- if messages and messages[0].role == 'system' -%}\n"
                "{{- messages[0].content + '\\n\\n' -}}\n"
                "{%- else -%}\n"
                "{{- 'Below is an instruction that describes a task. Write a response that "
                "appropriately completes the request.\\n\\n' -}}\n"
                "{%- endif -%}\n"
                "{%- for message in messages -%}\n"
                "{%- if message.role == 'user' -%}\n"
                "{{- '### Instruction:\\n' + message.content + '\\n\\n### Response:\\n' -}}\n"
                "{%- elif message.role == 'assistant' -%}\n"
                "{{- message.content + eos_token + '\\n\\n' -}}\n"
                "{%- endif -%}\n"
                "{%- endfor -%}" },
    { "chatglm2", "{{- '[gMASK]sop' -}}" MERGE_SYSTEM "{%- if message.role == 'user' -%}\n"
                  "{%- set ns.round = (ns.round or 0) + 1 -%}\n"
                  "{{- '[Round ' ~ ns.round ~ ']\\n\\n问：' + content + '\\n\\n答：' -}}\n"
                  "{%- elif message.role == 'assistant' -%}\n"
                  "{{- content + eos_token + '\\n\\n' -}}\n"
                  "{%- endif -%}\n"
                  "{%- endfor -%}" },
    { "chatglm3", "{{- '[gMASK]sop' -}}\n"
                  "{%- for message in messages -%}\n"
                  "{{- '<|' + message.role + '|>\\n ' + message.content -}}\n"
                  "{%- endfor -%}\n"
                  "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}" },
    { "chatml", CHATML },
    { "deepseek2", "{{- bos_token -}}\n"
                   "{%- for message in messages -%}\n"
                   "{%- if message.role == 'user' -%}\n"
                   "{{- 'User: ' + message.content + '\\n\\n' -}}\n"
                   "{%- elif message.role == 'assistant' -%}\n"
                   "{{- 'Assistant: ' + message.content + eos_token -}}\n"
                   "{%- elif message.role == 'system' -%}\n"
                   "{{- message.content + '\\n\\n' -}}\n"
                   "{%- endif -%}\n"
                   "{%- endfor -%}\n"
                   "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}" },
    { "default", "{{- bos_token -}}\n"
                 "{%- for message in messages -%}\n"
                 "{%- if message.role == 'system' -%}{{- message.content + '\\n' -}}\n"
                 "{%- elif message.role == 'user' -%}\n"
                 "{{- 'Human: ' + message.content + '\\nAssistant: ' -}}\n"
                 "{%- elif message.role == 'assistant' -%}\n"
                 "{{- message.content + eos_token + '\\n' -}}\n"
                 "{%- endif -%}\n"
                 "{%- endfor -%}" },
    { "empty", "{{- bos_token -}}\n"
               "{%- for message in messages -%}\n"
               "{{- message.content -}}\n"
               "{%- if message.role == 'assistant' -%}{{- eos_token -}}{%- endif -%}\n"
               "{%- endfor -%}" },
    { "gemma", "{{- bos_token -}}" MERGE_SYSTEM "{%- if message.role != 'system' -%}\n"
               "{%- set role = 'model' if message.role == 'assistant' else message.role -%}\n"
               "{{- '<start_of_turn>' + role + '\\n' + content | trim + '<end_of_turn>\\n' -}}\n"
               "{%- endif -%}\n"
               "{%- endfor -%}\n"
               "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}" },
    { "glm4", "{{- '[gMASK]<sop>' -}}\n"
              "{%- for message in messages -%}\n"
              "{{- '<|' + message.role + '|>\\n' + message.content -}}\n"
              "{%- endfor -%}\n"
              "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}" },
    { "llama2",
      "{%- set ns = namespace(system='') -%}\n"
      "{%- for message in messages -%}\n"
      "{%- if message.role == 'system' -%}\n"
      "{%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' -%}\n"
      "{%- elif message.role == 'user' -%}\n"
      "{{- bos_token + '[INST] ' + (ns.system + message.content).strip() + ' [/INST]' -}}\n"
      "{%- set ns.system = '' -%}\n"
      "{%- elif message.role == 'assistant' -%}\n"
      "{{- ' ' + message.content.strip() + ' ' + eos_token -}}\n"
      "{%- endif -%}\n"
      "{%- endfor -%}" },
    { "llama3", "{{- bos_token -}}\n"
                "{%- for message in messages -%}\n"
                "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + "
                "message.content | trim + '<|eot_id|>' -}}\n"
                "{%- endfor -%}\n"
                "{%- if add_generation_prompt -%}\n"
                "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n"
                "{%- endif -%}" },
    { "mistral", MISTRAL },
    { "mixtral", MISTRAL },
    { "qwen", "{%- if not messages or messages[0].role != 'system' -%}\n"
              "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}\n"
              "{%- endif -%}" CHATML },
};

enum { N_BUILTINS = sizeof builtins / sizeof *builtins };

const char *const *chat_template_names(void)
{
    static const char *names[N_BUILTINS + 1];

    /* The result is always the same, so it does not matter which thread writes it. */
    for (int i = 0; i < N_BUILTINS; i++)
        names[i] = builtins[i].name;
    return names;
}

const char *chat_builtin(const char *name)
{
    for (int i = 0; i < N_BUILTINS; i++)
        if (!strcmp(builtins[i].name, name))
            return builtins[i].text;
    return NULL;
}
