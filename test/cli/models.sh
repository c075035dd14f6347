#!/bin/sh
# test/cli/models.sh - the models we know and the jobs that train them on 80 GB GPUs: parameters, ranks, memory
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}

# Counts are those of the published weights; nodes are ModelLink's table's.
while read -r model nodes count; do
    expect "$model" 0 "^model $model: $count parameters\$" "$lmtrain" plan "configs/jobs/$model.yaml"
    expect "$model on $nodes nodes" 0 "^$((nodes * 8)) ranks " printf '%s\n' "$output"
    total=$(printf '%s\n' "$output" | sed -n 's/^total.*iB *\([0-9]*\) .*/\1/p')
    expect "$model fits with room for libraries ($total bytes)" 0 '' test "$total" -lt 72000000000
done <<END
aquila-7b 1 7,295,537,152
aquila2-34b 2 33,693,554,688
baichuan-7b 1 7,000,559,616
baichuan-13b 1 13,264,901,120
baichuan2-7b 1 7,505,973,248
baichuan2-13b 1 13,896,668,160
bloom-7b1 1 7,069,016,064
bloom-176b 12 176,247,271,424
gpt3-175b 16 174,615,846,912
internlm-7b 1 7,321,948,160
internlm-65b 4 66,454,298,624
llama-7b 1 6,738,415,616
llama-13b 1 13,015,864,320
llama-30b 4 32,528,943,616
llama-65b 4 65,285,660,672
llama2-7b 1 6,738,415,616
llama2-13b 1 13,015,864,320
llama2-34b 2 33,743,970,304
llama2-70b 4 68,976,648,192
llama3-8b 1 8,030,261,248
llama3-70b 8 70,553,706,496
mistral-7b 1 7,241,732,096
mixtral-8x7b 8 46,702,792,704
qwen-7b 1 7,721,324,544
qwen-14b 1 14,167,290,880
qwen-72b 16 72,287,920,128
qwen2-72b 4 72,706,203,648
END
for file in configs/jobs/*.yaml; do
    expect "$file is a job" 0 '' "$lmtrain" config "$file"
done
finish
