/*
 * ops.h - the catalogue: what a step program is made of
 *
 * About sixty kinds of transformer size. Here is what each takes and gives, and what may be asked
 * of an op; what is known of its kind is a row (op_info.h), which stands in the kind's family file.
 * Pure: no memory is touched, no device known.
 *
 * Notation below: T tokens (rows of a micro-batch: sequences * seq_len, one sequence after the
 * other), U rows of keys (as many sequences), d hidden, k and n a linear's inputs and outputs, V
 * vocabulary, f ffn, h heads, g kv heads, e head_dim, v the columns of a value head (e but in
 * multi-head latent attention), c = (h + 2 g) e, m experts, s of them that a token goes to. "act"
 * is the run's dtype (fp32, bf16 or fp16). "res" is the dtype of the residual stream and of its
 * gradient: fp32, or, where act is bf16, bf16. An op computes in fp32 what it writes of them,
 * rounds it to nearest even as it stores it, and goes on with what it has stored. 1-D parameters
 * with their accumulators, and masters are fp32; other parameters' accumulators (dw, dtable) and
 * optimizer states are fp32 or bf16.
 *
 * "+=" marks an accumulated output: out = (first ? 0 : out) + contribution, where the contribution
 * is complete before its one fp32 add (fp64 for loss; what is bf16 is rounded then), and `first`
 * comes with the call (design.md §5).
 * "~" marks an operand updated in place. "?" marks an optional one. "|" marks an output that may be
 * the memory of the first input: the program says where it is (program.h, over). Operands may be
 * views: rows lie `stride` apart.
 *
 *   embed               index[T x 1] i32, table[R x d] act, base?[T x d] res, offset?[1 x 1] i32
 *                       -> x[T x d] res
 *                         x = base + table[index - offset]; an index < 0, or whose row is not among
 *                         the R that the rank has, adds nothing
 *   embed_dw            dx[T x d] res, index[T x 1], offset? -> dtable[R x d] +=
 *                         rows added in token order
 *   Some have codes? u8 and most? fp32 as last outputs: what products of fp8 read in their place
 *   (op_info.h, codes_output), not repeated here: norms, swiglu, gelu, and their gradients.
 *
 *   rmsnorm             x[T x d] res, w[1 x d] fp32 -> y[T x d] act or res, rstd[T x 1] fp32
 *                         Zhang & Sennrich 2019, eq. 4; eps inside the root
 *   rmsnorm_grad        dy[T x d] act, x, w, rstd, add?[T x d] res
 *                       -> dx?[T x d] res, dw?[1 x d] +=, copy?[T x d] act
 *                         dx = add + the norm's own; copy: bit-equal to a cast of dx; dw has the
 *                         same bits without dx
 *   layernorm           x[T x d] res, w, b?[1 x d] fp32 -> y act, mean[T x 1], rstd[T x 1]
 *   layernorm_grad      dy, x, w, mean, rstd, add? -> dx?, dw? +=, db? +=, copy?
 *   add_rmsnorm         x[T x d] res, delta[T x d] act, w -> y, rstd, sum[T x d] res
 *                         sum = x + delta; bit-equal to add, then rmsnorm
 *   add_layernorm       x, delta, w, b? -> y, mean, rstd, sum
 *   linear              x[T x k] act, w[n x k] act, b?[1 x n] fp32 -> y[T x n] act or fp32
 *                         y = x w' + b
 *   linear_dx           dy[T x n] act, w[n x k] act -> dx[T x k] act
 *                         of linear, too: with `run_rows`, T rows are runs of so many, each of
 *                         which lies together as one row of x and y, dy and dx (op_in_rows)
 *   linear_dw           dy[T x n] act, x[T x k] act -> dw[n x k] +=, db?[1 x n] +=
 *   linear_fp8          x[T x k] bf16 or u8, w[n x k] bf16 or u8, b?[1 x n] fp32, x_most?[P x 1]
 *                       or [T x B] fp32,
 *                       w_most?[P' x 1] or [1 x B] fp32 -> y[T x n] bf16
 *                         y = x w' + b, both operands rounded to e4m3 (fp8_recipe.h says how).
 *                         x_most, w_most: with one scale of an operand, the largest |x| of each of
 *                         the P parts of the tensor of which the operand is one (fp8_amax); absent:
 *                         the operand is all of it. w of u8: codes; w_most is then the largest |x|
 *                         of each of its B blocks, row by row (fp8_weight_codes). x of u8:
 *                         likewise, with B blocks of each row
 *   linear_dx_fp8       dy[T x n] bf16 or u8, w[n x k] bf16 or u8, dy_most?, w_most? -> dx[T x k] bf16
 *                         likewise; blocks of w are those of the forward
 *   linear_dw_fp8       dy[T x n] bf16, x[T x k] bf16, dy_most?, x_most?
 *                       -> dw[n x k] +=, db?[1 x n] +=
 *                         likewise, with blocks along tokens; db is linear_dw's. With one scale
 *                         and e5m2_dy, dy is rounded to e5m2 in both
 *   fp8_amax            x[T x d] bf16 -> most[1 x 1] fp32
 *                         most = max |x|, where a NaN is more than infinity, and that than all else
 *   fp8_weight_amax     x[R x D] bf16, matrices[m x 5] i64, begin?[1 x 1] i64 -> most[1 x B] fp32
 *                         x is flat, and its first element is element `begin` (0) of a flat memory in
 *                         which the m matrices lie, a struct ops_fp8_matrix each: most is, of each
 *                         block of each matrix, the largest |x| of those elements that x has, or 0
 *   fp8_weight_codes    x[R x D] bf16, most[P x B] fp32, matrices[m x 5] i64, begin?
 *                       -> codes[R x D] u8, joined[1 x B] fp32
 *                         joined: of each block the largest of P parts'; codes of x's elements by it
 *                         (fp8_recipe.h), 0 where there is no matrix
 *   rope                x[T x n e] act, position[T x 1] i32, table[P x e] fp32
 *                       -> |out[T x n e] act
 *                         rotates each of n heads (q's, k's, or both side by side), halves (i, i +
 *                         e/2) paired as HF does.
 *                         table row p: cos of e/2 angles p theta^(-2i/e), then their sines
 *   rope_grad           dout[T x n e], position, table -> |dx[T x n e]
 *   head_norm           qk[T x (h + g) e] act, wq[1 x e] fp32, wk[1 x e] fp32
 *                       -> out[T x (h + g) e] act, rstd[T x (h + g)] fp32
 *                         rmsnorm of each q head with wq, of each k head with wk
 *   head_norm_grad      dout[T x (h + g) e], qk, wq, wk, rstd
 *                       -> dqk[T x (h + g) e], dwq?[1 x e] +=, dwk? +=
 *   attention           q[T x he] act, k[U x ge] act, v[U x gv] act, sample?[S x 1] i64,
 *                       head_offset?[1 x 1] i32, first?[T x 1] i32, last?[T x 1] i32
 *                       -> out[T x hv] act, lse[T x h] fp32
 *                         within each sequence, of seq_len queries and U / S keys; head i reads kv
 *                         head i / (h/g); scores scaled by `scale`; never stored; lse = log sum exp
 *                         of scores; dropout on probabilities where p > 0.
 *                         The query of row i sees the keys first[i] .. last[i] of its sequence,
 *                         last[i] being its own position. Without last it is the row's number in
 *                         the sequence (causal attention; U = T then), without first 0. Where
 *                         documents begin, and queries that are a part of their sequence in
 *                         whatever order of chunks, are so data. Neither first nor last decreases
 *                         from row to row of a sequence; -1 <= last < U / S. A query with first >
 *                         last sees no key: its out is 0, its lse +infinity, so that exp(score -
 *                         lse) is 0.
 *                         `window` > 0: nor keys at or before last[i] - window (Beltagy et al.
 *                         2020); an attribute since costs and cuDNN's plans depend on it.
 *                         `alibi` > 0: slope * (j - last[i]) is added to the scaled score of key j,
 *                         with the slope that the head has among `alibi` heads of all ranks (Press
 *                         et al. 2022; ops_alibi_slope). head_offset: the number of the first head,
 *                         where the rank has a part of them: wanted for dropout and alibi
 *   attention_grad      dout[T x hv], q, k, v, out, lse, sample?, head_offset?, first?, last?
 *                       -> dq[T x he] act, dk[U x ge] act, dv[U x gv] act
 *   attention_cached    q[T x he] act, k[T x ge] act, v[T x gv] act, position[T x 1] i32,
 *                       keys~[S L x ge] act, values~[S L x gv] act, head_offset?[1 x 1] i32,
 *                       segment?[T x 1] i32,
 *                       segments?[G x 3] i32
 *                       -> out[T x hv] act
 *                         rows s * seq_len + i belong to sequence s, whose cache is rows s L ..
 *                         of keys, values; writes k, v of all rows at their positions, then row
 *                         attends 0..position, of which `window` and `alibi` leave and add what
 *                         they do in attention; a position < 0 is no token: nothing is written,
 *                         out is 0. With segments, keys and values have L rows, and a row belongs
 *                         to segment (row, first, parent) of them: its positions from `first` on
 *                         lie at `row` ..., those before are its parent's (-1: there are none).
 *                         So what texts begin with alike is there once
 *   attention_part      state?[T x h (v + 2)] fp32, q[T x he] act, k[U x ge] act, v[U x gv] act,
 *                       first?[T x 1] i32, last?[T x 1] i32 -> |next[T x h (v + 2)] fp32
 *                         attention whose keys come in parts of each sequence, one part a call, in
 *                         ascending order: next is what queries have seen when they have seen the
 *                         part's keys, too. Columns: of each head the output not yet divided by
 *                         the sum; the heads' maxima of scaled scores; their sums of exp(score -
 *                         maximum). Without state the part is the first: zeros, maxima -infinity.
 *                         first and last are keys of the part. A query with first > last sees none
 *                         of it: next is its state, bit for bit. There are neither dropout nor
 *                         `alibi` nor `window`, which first can say
 *   attention_end       state[T x h (v + 2)] fp32 -> out[T x hv] act, lse[T x h] fp32
 *                         what attention gives. On the CPU bit-equal to it if parts begin at
 *                         multiples of 64 keys of the sequence; elsewhere, and on a GPU, sums are
 *                         rounded otherwise
 *   attention_part_grad sum?[T x he] fp32, dout[T x hv], q, k, v, out, lse, first?, last?
 *                       -> |dq[T x he] fp32, dk[U x ge] act or fp32, dv[U x gv] act or fp32
 *                         attention_grad, likewise: dq = sum + what the part's keys add to it, not
 *                         yet scaled. dk and dv are of the part's keys: the bits of attention_grad's
 *   attention_dq_end    sum[T x he] fp32 -> dq[T x he] act
 *                         dq = `scale` sum; as attention_end it has attention_grad's bits
 *   attention_received  q[T x he] act, k[T x ge] act, lse[T x h] fp32, head_offset?, first?, last?
 *                       -> scores[T x 1] fp32
 *                         of each key the sum of the probabilities that all queries of all heads
 *                         give it: operands and attributes are attention's, nothing is dropped
 *   swiglu              gu[T x 2f] act (gate | up) -> y[T x f] act
 *                         y = silu(gate) up
 *   swiglu_grad         dy[T x f], gu -> dgu[T x 2f]
 *   gelu                x[T x f] act -> y[T x f]
 *                         tanh form, Hendrycks & Gimpel 2016
 *   gelu_grad           dy, x -> dx
 *   scale               x[T x d] act -> y[T x d] act
 *                         y = `scale` x
 *   lora                y[T x n] act, h0?[T x r] act, b0?[n0 x r] act, h1?, b1?, h2?, b2?
 *                       -> out[T x n] act
 *                         `parts` n0, n1, n2 (0: none) are the widths of what y is made of, n in
 *                         all: out = y + [h0 b0' | h1 b1' | h2 b2'], the sum in fp32; a part
 *                         without h and b is y's. Hu et al. 2021, equation 3
 *   router              logits[T x m] fp32, bias?[1 x m] fp32
 *                       -> weight[T x s] fp32, expert[T x s] i32, stats?[1 x 1 + m] fp64 +=,
 *                       counts?[1 x m] fp64
 *                         expert: those of a token's s best keys, the best first, of equal ones
 *                         the lower. `score` softmax: keys are logits; weight: softmax over the
 *                         chosen (`normalize`), or their shares of the softmax over all m. sigmoid:
 *                         keys are sigmoids of logits, plus bias, which weights do not have (nor
 *                         softmax);
 *                         weight: the chosen's sigmoids, over their sum + 1e-20 (`normalize`), or
 *                         as they are. All times `scale`.
 *                         `groups` > 1 (DeepSeek-AI 2024, section 2.1.2): the m are so many groups
 *                         of neighbours; chosen are those of the `groups_kept` best groups, of
 *                         equal ones the lower, by their best key (softmax), or by the sum of
 *                         their two best keys (sigmoid).
 *                         stats adds m sum_e f_e P_e, where f_e is e's share of the T s choices and
 *                         P_e the mean of its scores, of a token's sum 1 (Fedus et al. 2021, eq.
 *                         4-6; 1 where all are alike), or `by_sequence` the mean of those of each
 *                         seq_len tokens; then e's choices. counts: these, as stats has them then;
 *                         without stats it is not written
 *   router_grad         dweight[T x s] fp32, weight, expert, logits?[T x m], scale?[1 x 1] fp32,
 *                       choices?[n T x s] i32, counts?[1 x m] fp64 -> dlogits[T x m] fp32
 *                         of the weights, of `balance` times what stats adds, f_e a constant, and
 *                         of `z` times the mean of squares of log sum_e exp(logits_e) (Zoph et al.
 *                         2022, eq. 5); logits: where one of both is more than 0, weights are not
 *                         normalized, or scores are sigmoids. scale: a power of two, by which
 *                         dweight is too large, and `balance` and `z` are to be, too. choices: f_e
 *                         is e's share of these, in place of expert's: those of n layers, of which
 *                         this is one, or of n parts of the same sequences; counts: its share of
 *                         these
 *   limit_choices       expert[T x s] i32, weight?[T x s] fp32
 *                       -> kept[T x s] i32, dropped?[1 x 1] fp64 +=
 *                         kept: expert, but -1, which is none, of choices beyond the first `capacity`
 *                         of an expert, in the order of tokens; with weight beyond those of the
 *                         largest weights, of equal ones the lower token's. dropped adds how many
 *                         these are. A token chooses none of the `n_experts` twice
 *   balance_bias        counts[1 x m] fp64, skip_update, bias~[1 x m] fp32
 *                         bias_e += `rate` sign(mean of counts - counts_e), unless skip_update is
 *                         set (Wang et al. 2024, algorithm 1)
 *   gate_rows           x[T x f] act, gate[T x 1] fp32 -> y[T x f] act
 *                         y = sigmoid(gate) x
 *   gate_rows_grad      dy[T x f], x, gate -> dx[T x f], dgate[T x 1] fp32
 *   expert_order        expert[T x s] i32, begin?[1 x 1] i32 -> place[T x s] i32, ends[1 x m] i32
 *                         rows by expert, then token: place is each choice's row, expert e's are
 *                         ends[e-1] .. ends[e] - 1. With begin: of the m experts from there on
 *                         alone, which are numbered from 0 in ends, of `n_experts` in all; place is
 *                         -1 of choices of others, and of what is -1: they have no row
 *   dispatch            place[T x s] i32, x[T x d] act, ends?[1 x m] i32 -> y[R x d] act
 *                         y[place[t, i]] = x[t], where there is a row; combine's gradient. R is at
 *                         most T s; rows that are the place of no choice are neither read nor
 *                         written, here and by all that follows. With `experts`, here and below,
 *                         rows of these alone, as ends has them
 *   combine             place[T x s] i32, y[R x d] act -> x[T x d] act
 *                         x[t] = sum_i y[place[t, i]], in order, of those that have a row;
 *                         dispatch's gradient
 *   expert_linear       x[R x k] act, ends[1 x m] i32, w[m n x k] act -> y[R x n] act
 *                         rows of expert e times its w, rows e n .. of w; no row from ends[m-1] on
 *                         is read or written, by its gradients neither
 *   expert_linear_dx    dy[R x n] act, ends, w[m n x k] act -> dx[R x k] act
 *   expert_linear_dw    dy[R x n] act, x[R x k] act, ends -> dw[m n x k] +=
 *   expert_linear_fp8   x[R x k] bf16, ends[1 x m] i32, w[m n x k] bf16 or u8, w_most?[1 x B] fp32
 *                       -> y[R x n] bf16
 *                         of each expert the linear_fp8 of its rows and its w: blocks of w are of
 *                         one expert each, and with one scale its rows have one, and its w. w_most:
 *                         with codes, as linear_fp8's, of one expert after the other; else it is
 *                         not read
 *   expert_linear_dx_fp8  dy[R x n] bf16, ends, w[m n x k] bf16 or u8, w_most? -> dx[R x k] bf16
 *   expert_linear_dw_fp8  dy[R x n] bf16, x[R x k] bf16, ends -> dw[m n x k] +=
 *                         likewise; blocks along tokens begin with each expert's rows
 *   expert_lora         y[R x n] act, ends[1 x m] i32, h0?[R x r] act, b0?[m n0 x r] act, h1?,
 *                       b1?, h2?, b2? -> out[R x n] act
 *                         lora's, of the rows that experts have: those of expert e with its rows
 *                         e n0 .. of b0, e n1 .. of b1; its gradients are of expert_linear_dx, dw
 *   expert_swiglu       weight[T x s] fp32, place[T x s] i32, gu[R x 2f] act, ends? -> y[R x f] act
 *                         swiglu's, times the row's weight: so that what comes out of an expert
 *                         need not be kept for the weight's gradient
 *   expert_swiglu_grad  weight, place, dy[R x f], gu, ends? -> dgu[R x 2f], dweight[T x s] fp32
 *                         dweight is 0 of choices that have no row; where `experts` do not begin
 *                         with the first one it stays as it was there
 *   page_start          free~[1 x 2 + P] i32 ->
 *                         all P pages are free; free is the number of these, 0, and their numbers
 *   page_out            x[R x d] any, ends[1 x m] i32, pages~[P x w] as x, free~ -> table[1 x N] i32
 *                         the first ends[m-1] rows of x, one after the other, into pages of w
 *                         elements that were free; table: their numbers, in order, N = ceil(R d /
 *                         w). Where fewer are free than are needed none is taken, the first of
 *                         table is -1, and the second of free is 1 more
 *   page_in             table, ends, pages, free~ -> x[R x d]
 *                         these rows again, no others are written; `frees`: then the pages are free.
 *                         Rows that got no pages are NaN
 *   dropout             x[T x d], sample[S x 1] i64, offset?[1 x 1] i32, row?[R x 1] i32
 *                       -> y[T x d], y's dtype = x's
 *                         kept / (1 - p) where uniform >= p; uniform keyed by (seed, sample,
 *                         `place`, element); offset: x's rows are those of the micro-batch from
 *                         there on, and sample is of all of it; or, where `by_columns`, its
 *                         columns. row: the number in the micro-batch of each row (R = T), or of
 *                         those of which x's are a part (offset: from there on); sample is of all
 *                         of it then, too
 *   dropout_grad        dy, sample, offset?, row? -> dx
 *   add                 a[T x d] fp32, b[T x d] act or fp32 -> y[T x d] fp32
 *                         or all three bf16, or fp16: gradients of what is read several times
 *   add_bias            x[T x n] act, b[1 x n] fp32 -> y[T x n] act
 *                         for a product whose sum over ranks comes before its bias
 *   bias_grad           dy[T x n] act -> db[1 x n] +=
 *                         sums of columns, as linear_dw's
 *   cast                x[T x d] -> y[T x d] of another dtype
 *   select_rows         x[T x d] act, index[S x 1] i32 -> y[S x d] act
 *   normalize_rows      w[V x d] act -> y[V x d] act, norm[V x 1] fp32
 *                         y = w / norm of each row, norm = max(|w|, eps): of a head whose rows
 *                         count by direction alone
 *   normalize_rows_grad dy[V x d] fp32, w, norm -> dw[V x d] fp32 +=
 *                         dy may be a sum that is still owed: dw then is, too
 *   head_cross_entropy  x[T x d] act, w[V x d] act, target[T x 1] i32, scale[1 x 1] fp32
 *                       -> dx[T x d] act, dw?[V x d] +=, loss[1 x 1] fp64 +=, squares? alike
 *                         loss adds sum over targets >= 0 of -log softmax(x w')[target], squares
 *                         that of (log sum exp(x w'))^2; dx and dw are of scale * (the first sum +
 *                         `z` * the second one: Chowdhery et al. 2022, section 5); `chunk` tokens
 *                         at a time, so the logits never exist whole
 *   head_loss           x, w, target -> loss[1 x 1] fp64 +=
 *   logit_stats         logits[T x V] fp32, target[T x 1] i32, offset?[1 x 1] i32
 *                       -> stats[T x 3] fp32
 *                         of each row: the largest logit, the sum of exp(logit - largest), the
 *                         target's logit or 0 where it is not among these. Column j is token offset
 *                         + j; tokens from `vocab_size` on are padding and count as -infinity
 *   cross_entropy       logits, stats[n T x 3] fp32 (of n ranks' vocabulary parts, rank by rank),
 *                       target, scale[1 x 1] fp32, offset?
 *                       -> dlogits?[T x V] act, loss[1 x 1] fp64 +=, squares?[1 x 1] fp64 +=
 *                         the parts' statistics are joined in order of rank; loss adds -log
 *                         softmax(logits)[target] of targets >= 0, squares (log sum exp)^2;
 *                         dlogits is of scale * (the first sum + `z` * the second one) in the
 *                         part's logits, 0 for padding. Milakov & Gimelshein 2018 (joined
 *                         maxima and sums); Shoeybi et al. 2019, section 3 (vocabulary parallel)
 *   accumulate          x[r x c] fp32 or bf16 -> y[r x c] alike +=
 *   all_gather          shard[r x n] -> full[r size x n], or shard[1 x n] -> full[1 x n size]
 *                         over `axis`: ranks' parts one after the other
 *   reduce_scatter      full[r size x n] -> shard[r x n], or full[1 x n size] -> shard[1 x n]
 *                         over `axis`, tree sum; a shard of gradients is added to
 *   all_reduce          x[r x n] -> y[r x n]
 *                         over `axis`, tree sum, the bits of reduce_scatter; y may be x's memory
 *   all_reduce_scalar   x[1 x n] fp64 -> y[1 x n] fp64
 *                         over `axis`, tree sum
 *   gather_heads        qkv[T x h e + 2 w] act -> out[T x (h + 2) e] act
 *                         over `axis`: where `group` neighbours share one kv head, each has w = e /
 *                         group columns of its k and of its v (q heads | k part | v part); here
 *                         they get the whole of them
 *   gather_heads_grad   dout[T x (h + 2) e] act -> dqkv[T x h e + 2 w] act
 *                         over `axis`: each gets its columns of k and v, tree-summed over the group
 *   rows_to_heads       x[T x (h + 2 g) e] act -> y[n T x (h' + 2 g') e] act
 *                         over `axis` of n ranks: from all heads of the rank's rows to all ranks'
 *                         rows of the rank's heads. Columns are q heads | k heads | v heads, the
 *                         attributes count x's; g may be 0: q heads alone. h' = h / n; g' = g / n,
 *                         or 1 where n / g neighbouring ranks get one kv head. A sequence has
 *                         seq_len rows in x and n times as many in y, those of rank 0 first. With
 *                         part_rows, x is a slice of every rank's rows, as below
 *   heads_to_rows       y[n T x (h' + 2 g') e] act -> x[T x (h + 2 g) e] act
 *                         over `axis`: the way back, by the same attributes; a kv head of several
 *                         ranks is their tree sum. Each is the other's gradient
 *   gather_sequence     part[T x n] -> whole[T size x n]
 *                         over `axis`: a sequence's rows of all ranks, seq_len of each. In order of
 *                         ranks; or, with `zigzag`, rank i has chunks i and 2 size - 1 - i of the 2
 *                         size that a sequence is cut into, in this order. With part_rows, `part`
 *                         is a slice of every rank's rows; these are put where they belong in
 *                         the part_rows size rows at `whole`, the others stay as they are
 *   scatter_sequence    whole[T size x n] -> part[T x n]
 *                         over `axis`: the rank's rows of the tree sum. Each is the other's
 *                         gradient. With part_rows, these of all at `whole`, the slice's alone
 *   rotate              x[r x c] any -> y[r x c] as x
 *                         over `axis`: the x of the rank `peer` further along (wrapping); every
 *                         rank sends and receives
 *   gather_window       part[S r x n] -> seen[S R x n]
 *                         over `axis` of q ranks, with sequences cut as by gather_sequence's zigzag
 *                         (r = seq_len rows of a rank, chunks of r / 2): what a window of `window`
 *                         keys sees from the rank's rows. A sequence of `seen` is one span for each
 *                         of the two chunks: the chunk's rows behind the window - 1 rows before it,
 *                         which a neighbour has, so laid that a row's number in its span and in its
 *                         sequence are equal modulo OPS_KEY_TILE (ops_window_*); all else is 0
 *   scatter_window      seen[S R x n] -> part[S r x n]
 *                         over `axis`: each row is the sum of what is in its place on the rank and,
 *                         of the last window - 1 of a chunk, in the next chunk's span. Each is the
 *                         other's gradient
 *   send_rows           x[T x d] act, choices[n T x s] i32, place?[T x s] i32 -> y[n T x d] act
 *                         over `axis` of n ranks, which have m / n experts each, m `n_experts`, in
 *                         their order; choices are of all ranks' tokens, rank by rank. Each rank
 *                         gets the rows of all tokens that chose one of its experts, once: token t
 *                         of rank r at row r T + t. Other rows of y stay as they are. place, which
 *                         is read by the gradient alone: expert_order's of the rank's own
 *                         tokens. With `experts`, of tokens that chose one of these of the rank,
 *                         and none of those before them
 *   return_rows         y[R x d] act, choices[n T x s] i32, place?[n T x s] i32 -> x[T s x d] act
 *                         over `axis`: y has a row of each choice of one of the rank's experts, by
 *                         expert, then rank, then token, as expert_order with begin counts them; R
 *                         is at most n T min(s, m / n). x has those of the rank's own tokens, by
 *                         expert, then token, as expert_order counts them: each from the rank that
 *                         has its expert; rows behind those of choices that are not -1 are
 *                         undefined. place, for the gradient: that of all tokens, with begin. With
 *                         `experts`, rows of these of each rank, which lie where they do with all
 *                         A dispatch of sent rows has as its gradient the combined rows that are
 *                         returned, a combine of returned rows the dispatch of those that are sent
 *   exchange_codes      x[R x b] -> y[R x b]
 *                         over `axis` of R ranks: row r goes to rank r, row r of y is from rank r.
 *                         What were all ranks' summands of a sum are the summands of a part of it
 *   gather_codes        x[1 x b] -> y[R x b]
 *                         over `axis` of R ranks: row r is from rank r
 *   send                x[T x d] ->
 *                         to the rank `peer` further along `axis` (wrapping), which receives it
 *   receive             -> y[T x d]
 *                         from the rank `peer` further along `axis`
 *   to_host             x[r x c] any -> y[r x c] as x, in host memory
 *                         a copy from the device's memory, dense on both sides; on the CPU from
 *                         memory to memory
 *   to_device           x[r x c] any, in host memory -> y[r x c] as x
 *   await               x[r x c] any ->
 *                         computes nothing: but what runs after it comes after all that was given
 *                         to other streams with x among its operands, so x's memory is free
 *   sum_runs            x[1 x N] fp64, ends[1 x K] i32, order?[1 x M] i32 -> y[1 x K] fp64
 *                         y[k] = the sum, one after the other, of elements ends[k-1] .. ends[k] - 1
 *                         of x, or of those that order names; 0 where there are none
 *   sumsq               x[r x c] fp32 or bf16 -> sums[1 x blocks] fp64
 *                         fp64 sum of squares of each OPS_NORM_BLOCK elements, in order
 *   gradient_norm       sums[1 x N] fp64, order?[1 x M] i32, scale?[1 x 1] fp32
 *                       -> norm[1 x 1] fp64, factor[1 x 1] fp32, skip[1 x 1] i32
 *                         norm = sqrt(sum in order: sums[order[0]] first); factor = clip > 0 and
 *                         norm > clip ? clip / norm : 1; skip = norm is not finite
 *   adamw               gradient[r x c] fp32 or bf16, scalars[1 x OPS_N_SCALARS] fp32, factor,
 *                       skip, master~[r x c] fp32 or bf16, m~, v~ fp32, bf16 or u8, decay?[1 x
 *                       blocks] fp64, rng_site?[1 x blocks] fp64, part?[1 x 1] i32, low~?[r x c]
 *                       i16, m_scale~?, v_scale~?[1 x state blocks] fp32
 *                       -> weight?[r x c] act
 *                         weight is the rounded master; Loshchilov & Hutter 2019, algorithm 2;
 *                         nothing changes where skip is set; decay: the weight decay of each
 *                         OPS_NORM_BLOCK elements, in the attribute's place (a shard of many
 *                         parameters). What is bf16 is computed in fp32 and rounded stochastically
 *                         as it is stored, by numbers that hang on what the element is and not on
 *                         where it lies (ops_rounding): rng_site says of each block which one of
 *                         its parameter it is, part which of the tensor-parallel parts this is;
 *                         without rng_site the operands are one parameter, the attribute its place;
 *                         low: a master of bf16 has the upper words of fp32 numbers, low the lower
 *                         ones (base/halves.h), and the upper ones are the weight; half_away: a
 *                         weight of bf16 is rounded as upper words are, else to even; m and v of
 *                         u8 are codes (ops/state_codes.h) that stand for parts of the largest
 *                         magnitude of each OPS_STATE_BLOCK elements in storage order, m_scale and
 *                         v_scale: what goes into a step are the numbers before they are coded
 *   lion                as adamw, without v; Chen et al. 2023 (arXiv 2302.06675), algorithm 2:
 *                         master -= lr sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g
 *   sgd                 as adamw, without v, m not of u8: g += decay master, m = beta1 m + g,
 *                         master -= lr (nesterov ? g + beta1 m : m), as torch.optim.SGD
 *   cadam               as adamw, without v, m fp16, scaled: m = beta1 m + (1 - beta1) g, master -=
 *                         lr sign(m), and m_scale = (largest |m| of the block) / OPS_FP16_FULL +
 *                         eps, m is kept as fp16 of m (1 / m_scale)
 *   muon_momentum       gradient[r x c] fp32 or bf16, factor, skip, m~[r x c] fp32 -> u[r x c] bf16
 *                         Jordan et al. 2024, Muon: with g = factor gradient, m += (1 - `beta1`)
 *                         (g - m); u = m, or, `nesterov`, m + (1 - `beta1`) (g - m), rounded to
 *                         nearest even. Where skip is set m stays, and u is 0
 *   newton_schulz       x~[r x c] bf16
 *                         each matrix in x becomes `scale` times what `steps` steps of a polynomial
 *                         make of it, with coefficients (a, b, c) of each step by `coefficients`
 *                         (ops/newton_schulz.h): X = X / max(|X|, `eps`), its norm being
 *                         Frobenius'; A = X X'; X = a X + (b A + c A A) X. Products are of bf16
 *                         with sums of fp32, A, b A + c A A, and X are rounded to bf16 as they are
 *                         stored, the last X but once, with its scale. A matrix of more rows than
 *                         columns is transposed meanwhile. x has as many times as it has rows for:
 *                         `matrix_parts` parts one after the other, of each of which `matrices`
 *                         matrices of `matrix_rows` rows; parts of a matrix lie one below the
 *                         other, or, `by_columns`, side by side
 *   muon_update         x[r x c] bf16, scalars[1 x OPS_N_SCALARS] fp32, skip, master~[r x c] fp32,
 *                       decay?[1 x blocks] fp64 -> weight?[r x c] act
 *                         master = master (1 - lr decay) - lr x, unless skip is set; decay and
 *                         weight as adamw's
 *   ema                 x[r x c] fp32 or bf16, scalars, skip, average~[r x c] fp32, low? ->
 *                         average += `rate` * (x - average), in fp32, unless skip is set; at the
 *                         first update average = x. low: as of adamw
 *
 * Codecs' ops (encode to low_rank_sum) are in ops/codec.h.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include <stdint.h>

#include "base/err.h"
#include "ops/codec.h"
#include "ops/fp8_recipe.h"
#include "ops/kinds.h"
#include "ops/mesh_axis.h"
#include "ops/newton_schulz.h"
#include "ops/operands.h"
#include "ops/rounding.h"
#include "ops/tensor.h"

#define OPS_MAX_INPUTS 13
#define OPS_MAX_OUTPUTS 6
#define OPS_HEAD_DIM_MAX 256 /* of attention and rope, of keys and of values */
#define OPS_LORA_PARTS 3     /* q, k and v */
#define OPS_N_STATS 3        /* of a row of logits: largest, sum of exp, the target's */
#define OPS_NORM_BLOCK 4096  /* elements of one fp64 partial sum of the gradient norm */
#define OPS_STATE_BLOCK 256  /* of a norm block: elements of a state that share a scale */

/* The run-time scalars that the host writes before a step's update. */
enum ops_scalar {
    SCALAR_LR,
    SCALAR_BIAS1, /* 1 - beta^t */
    SCALAR_BIAS2,
    SCALAR_UPDATE, /* t: updates so far and this one; below OPS_UPDATES_MAX, so exact in fp32 */
    OPS_N_SCALARS
};
#define OPS_UPDATES_MAX (1 << 24)

/* cadam's largest fp16 magnitude, one step below the type's. */
#define OPS_FP16_FULL 65503.0f

/* How a token's logits become what experts are chosen and weighed by. */
enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID };
#define OPS_ROUTER_GROUPS_MAX 32

/* The parameters of an op besides its operands; zero where the kind has no such parameter. */
struct op_attributes {
    int n_heads, n_kv_heads, head_dim;
    int seq_len;       /* rows of one sequence; of an attention: of its queries; of an exchange of
                     * rows and heads, and of a gathered sequence: of one rank's part */
    int cache_len;     /* L of attention_cached: positions of a sequence, or rows of all */
    int chunk;         /* tokens of head_cross_entropy's and head_loss's chunks */
    int vocab_size;    /* logit_stats, cross_entropy: tokens there are, on all ranks */
    int group;         /* gather_heads: neighbours that share a kv head */
    int zigzag;        /* gather_sequence, scatter_sequence: a rank has two chunks, which balance */
    int64_t part_rows; /* gather_sequence, scatter_sequence, rows_to_heads, heads_to_rows: rows of
                        * the rank's whole part, of which these are a slice from row `first` on; 0:
                        * it is all of it */
    int64_t run_rows;  /* linear, linear_dx: rows in a row of operands; 0: one */
    int64_t first;     /* of experts, too: of a rank's these many from `first` on (send_rows,
                        * return_rows, and what takes ends); 0: all */
    int experts;
    int window;       /* attentions, gather_window, scatter_window: keys that a query sees at most,
                     * up to its own; attentions: 0: any number */
    int alibi;        /* attentions: heads of all ranks, by which slopes go; 0: no slopes */
    int n_experts;    /* send_rows, return_rows, expert_order with begin: those of all ranks;
                     * limit_choices; fp8_weight_codes: not 0 where the matrices are experts' */
    int64_t capacity; /* limit_choices: choices of an expert that are kept */
    int64_t n_rows;   /* of experts' rows, which are a bound: so many are expected; 0: all */
    int normalize;    /* router: weights are of the chosen experts' scores alone */
    enum router_score score;   /* router */
    int groups, groups_kept;   /* router: of experts; 0: one */
    int frees;                 /* page_in: nothing else reads the pages */
    int by_sequence;           /* router: each sequence has a balance of its own */
    double balance;            /* router_grad: coefficient of the balance in the loss */
    double rate;               /* balance_bias; ema: 1 - decay */
    double z;                  /* router_grad, head_cross_entropy, cross_entropy: coefficient of the
                                * squares of logits' log sum exp */
    int parts[OPS_LORA_PARTS]; /* lora, expert_lora: columns of each */
    int by_columns;            /* dropout: x's columns, not its rows, are those from the offset on;
                          newton_schulz */
    double scale;              /* attention, scale, newton_schulz; router: of weights;
                          low_rank_sum: 1 / ranks */
    double eps;                /* norms, optimizers, newton_schulz */
    double p;                  /* dropout, attention: probability of dropping */
    uint64_t seed;             /* of the run, for dropout and optimizers' rounding */
    uint64_t rng_site; /* layer and op, for dropout (RNG_DROPOUT's place_high is mixed from it);
                       optimizers: ops_rng_site of the parameter */
    double beta1, beta2, weight_decay; /* optimizers; muon_momentum: beta1; muon_update: the last */
    int half_away;                     /* optimizers: how a weight of bf16 is rounded */
    int nesterov;                      /* sgd, muon_momentum */
    int64_t matrix_rows;               /* newton_schulz, and the following: of a matrix' part */
    int matrices, matrix_parts;
    int steps;
    enum newton_schulz coefficients;
    enum codec codec;    /* encode, decode */
    enum fp8_recipe fp8; /* linear_fp8, expert_linear_fp8, and their gradients */
    int wide_dw;         /* linear_fp8, expert_linear_fp8: dw is that of products without fp8 */
    int e5m2_dy;         /* linear_fp8, its gradients: dy is rounded to e5m2 */
    double ratio;        /* top_k, encode_rows, decode_rows */
    int bits;            /* encode_rows, decode_rows */
    int joined;          /* decode_rows */
    int rank;            /* low_rank_*: columns of factors */
    int fills;           /* low_rank_basis: with random columns */
    int64_t start;       /* keep_error */
    double clip;         /* gradient_norm */
    enum mesh_axis axis; /* collectives, send, receive */
    int peer;            /* rotate, send, receive: +1 or -1 along the axis */
};

static inline int ops_router_groups(const struct op_attributes *attributes)
{
    return attributes->groups > 1 ? attributes->groups : 1;
}

/* Whether the kind exchanges data with other ranks, as send and receive do, too. */
int op_is_collective(enum op_kind kind);

/* Whether a kernel computes it. Else run moves bytes: collectives, and copies between spaces. */
int op_has_kernel(enum op_kind kind);

/*
 * Where memory is. A device's kernels read and write its own alone; what lies in the host's or in a
 * file is copied by to_host and to_device. On the CPU the first two are the machine's memory.
 */
enum space { SPACE_DEVICE, SPACE_HOST, SPACE_FILE, N_SPACES };
const char *space_name(enum space space); /* "device", "host", "file" */

const char *axis_name(enum mesh_axis axis); /* "dp", "tp", ... */

/* N_OP_KINDS if there is none of that name. */
enum op_kind op_find(const char *name);

/* One op with its operands, as shapes or as memory. Absent operands have rows 0. */
struct op_shape {
    enum op_kind kind;
    struct op_attributes attributes;
    struct tensor in[OPS_MAX_INPUTS];
    struct tensor out[OPS_MAX_OUTPUTS];
};

/*
 * Check shapes and dtypes of all operands against the kind's rule. Returns 0, or -1 and ERR_FAILED
 * "linear: w is [512 x 64], wanted [* x 128]".
 */
int op_check(const struct op_shape *op, struct err *err);

/* Columns of a value head, from an attention's values or their gradient. */
static inline int ops_value_dim(const struct op_shape *op, const struct tensor *values)
{
    return (int)(values->cols / op->attributes.n_kv_heads);
}

/* linear_fp8 and its gradients: the input with the largest elements of the first or second one. */
static inline int ops_fp8_most(enum op_kind kind, int operand)
{
    return (kind == OP_LINEAR_FP8 ? (int)LINEAR_FP8_X_MOST : (int)LINEAR_GRAD_FP8_0_MOST) + operand;
}

/* Of a kind with codes (op_info.h): the output that is rounded. */
int ops_rounded_output(const struct op_shape *op);

/* Keys of a sequence, from an attention's queries and keys. */
static inline int ops_key_len(const struct op_shape *op, const struct tensor *queries,
                              const struct tensor *keys)
{
    return (int)(keys->rows / (queries->rows / op->attributes.seq_len));
}

/*
 * gather_window's spans, of a chunk of `chunk` rows and the window - 1 before it: how many rows
 * each has, and the sequence's row with which that of the i-th chunk of the sequence begins (less
 * than 0: rows that there are not). Kernels add up tiles of so many keys, whose bits are those of
 * whole sequences where spans begin with one.
 */
enum { OPS_KEY_TILE = 64 };

/* Of an op on sequences of which each rank has a part: whether its output is the side with all
 * ranks' rows; else its input is. */
static inline bool ops_makes_whole(enum op_kind kind)
{
    return kind == OP_GATHER_SEQUENCE || kind == OP_ROWS_TO_HEADS;
}

static inline int64_t ops_window_rows(int64_t chunk, int window)
{
    return (chunk + window - 1 + 2 * (OPS_KEY_TILE - 1)) / OPS_KEY_TILE * OPS_KEY_TILE;
}

static inline int64_t ops_window_begin(int64_t chunk, int window, int i)
{
    int64_t row = i * chunk - (window - 1), over = row % OPS_KEY_TILE;

    return row - (over < 0 ? over + OPS_KEY_TILE : over);
}

/* The share of tokens that choose one of n_own experts, if a token's n_chosen are any of n_experts:
 * 1 - C(n_experts - n_own, n_chosen) / C(n_experts, n_chosen). */
double ops_chosen_share(int64_t n_experts, int64_t n_own, int64_t n_chosen);

/* The matrices of newton_schulz: how large each is, and how many there are. */
struct newton_schulz_matrix {
    int64_t rows, cols, n;
};
struct newton_schulz_matrix ops_newton_schulz_matrix(const struct op_shape *op);

/* ALiBi's slope of head `head` of n_heads; n_heads need not be a power of two. */
double ops_alibi_slope(int head, int n_heads);

/* The op with T rows one below the other, where attributes.run_rows says that they are runs; what
 * lies between runs is forgotten. */
struct op_shape op_in_rows(const struct op_shape *op);

/* The op in rows, with as many rows of experts as are expected. Of it floating-point operations (a
 * multiply-add is 2), and bytes read and written if each is moved once. */
struct op_shape op_expected(const struct op_shape *op);
double op_flops(const struct op_shape *op);
double op_bytes(const struct op_shape *op);

/*
 * How a value lies over the ranks of one mesh axis: equal everywhere; split along rows or columns;
 * or partial: every rank holds a summand and the sum is still owed.
 */
enum spread { SPREAD_SAME, SPREAD_ROWS, SPREAD_COLS, SPREAD_PARTIAL, N_SPREADS };

/* "same", "split(rows)", "split(cols)", "partial". */
const char *spread_name(enum spread spread);

/*
 * From the spreads of the given inputs on one axis, those of the outputs. in[i] of an absent
 * operand is ignored. on_axis is 1 when the op is a collective over this very axis. Returns 0, or
 * -1 and ERR_FAILED: the op cannot take such inputs ("rmsnorm: x is partial over tp").
 */
int op_spread(const struct op_shape *op, int on_axis, const enum spread *in, enum spread *out,
              struct err *err);

#endif
