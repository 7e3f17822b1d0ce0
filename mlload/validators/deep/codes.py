"""Texts of the findings about contents: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, what it means and what to do).
CODES: dict[str, tuple[str, str]] = {
    "DP001": (
        "NaN or infinity among the weights",
        "A weight is not a finite number, so that every token that meets it becomes NaN and the model answers with one "
        "repeated token. Bytes were damaged on the way, or the training or the conversion overflowed (float16 beyond "
        "65504). Headers and shapes stay valid: only reading the numbers shows it. Fetch the file again and compare "
        "its digest.",
    ),
    "DP002": (
        "NaN or infinity among the scales",
        "A scale of a quantized layer is not a finite number: all weights of its group become NaN. vLLM fills the "
        "block scales of NVFP4 linears with NaN before it loads, refuses to start where one is left, and so refuses "
        "such a file too; every other format is served. Fetch the file again, or quantize anew.",
    ),
    "DP003": (
        "zero scales",
        "A scale is 0 while the weights of its group are not: they are all lost. Exporters that cast scales below "
        "2**-9 to fp8 e4m3 write such zeros, and calibration that saw no data writes them for activations, where they "
        "are divided by. Groups whose weights are zero too are left out. Quantize anew with an exporter that keeps "
        "scales above zero.",
    ),
    "DP004": (
        "every scale of a layer is the same",
        "All scales of a layer have one value, which real weights do not give: a placeholder was saved before the "
        "scales were computed, or was never replaced on loading. Powers of two are left out unless they are 1, since "
        "formats that round scales to powers of two repeat them. Quantize anew.",
    ),
    "DP005": (
        "denormal scales",
        "Scales lie below the smallest normal number of their type: they have lost bits, and GPUs that flush such "
        "numbers make them 0. For bfloat16 and float32 none should be that small; for float16 and fp8 a few are "
        "usual, many are not. Store the scales in a wider type.",
    ),
    "DP006": (
        "values far too large for a model",
        "A weight is beyond a million (a scale beyond 10**12), where those of models are below a thousand: most often "
        "a flipped bit in an exponent. Fetch the file again and compare its digest.",
    ),
    "DP007": (
        "saturated codes",
        "A large part of a quantized weight sits at the end of its range: the scale was too small and the values "
        "were clipped. Counted in samples from all of the tensor. Quantize anew with a scale from the largest value.",
    ),
    "DP008": (
        "a weight of nothing but zeros",
        "Every element of a matrix is 0, or every stored word of a packed one is the same: the layer does nothing. It "
        "was never written (an export that was interrupted, a file that was only reserved) or never trained.",
    ),
    "DP009": (
        "a hole of zeros in a weight",
        "A long run of zero bytes begins or ends inside a row. Layers that are pruned or padded have whole rows of "
        "zeros; a hole across rows is what a download leaves that reserved its file and did not fill it. Fetch the "
        "file again.",
    ),
    "DP010": (
        "the digest differs",
        "The sha256 of the file is not the one in the manifest, or not the one under which the Hub keeps it. Other "
        "bytes than the publisher's: damaged on the way, cut off, or changed since. Everything else may still look "
        "right. Fetch the file again.",
    ),
    "DP011": (
        "a file of the manifest is missing",
        "The manifest lists a file that is not in the checkpoint, or cannot be read. Fetch it, or write the manifest "
        "anew if it was removed on purpose.",
    ),
    "DP012": (
        "weights that the manifest does not cover",
        "Files with weights that an engine would read are not in the manifest, so that nothing can be said of their "
        "bytes. Write the manifest anew.",
    ),
    "DP013": (
        "a file changed while it was read",
        "Size, time or identity of the file were not the same at the end: something is still writing it. What was read "
        "is no state that the checkpoint had. Validate again when the copy or the download has ended.",
    ),
    "DP014": (
        "beyond the range of float16",
        "A tensor stored in a wider type has values above 65504, the largest float16. Served in float16 (asked for, or "
        "the only choice of the GPU or of the kernel) they become infinite. Serve in bfloat16 or float32.",
    ),
    "DP015": (
        "near the end of the range of float16",
        "A tensor has values above half of 65504, the largest float16. They fit, but the sum or the difference of two "
        "of them does not: vision towers that standardize their input overflow so, and the model answers with padding "
        "tokens. Serve in bfloat16.",
    ),
    "DP016": (
        "GPTQ zero points of the other version",
        "The zero points are those of one version of GPTQ's format and the config names the other: v1 stores z - 1, v2 "
        "stores z. Kernels that read zero points (plain GPTQ, ExLlama, 2 and 3 bits, experts) are then off by one "
        "scale everywhere and the model repeats one token. vLLM's Marlin path for symmetric weights never reads them, "
        "so it is not harmed. Set checkpoint_format to what the zeros are.",
    ),
    "DP017": (
        "zero points that borrowed from their neighbours",
        "In version 1 of GPTQ's format z - 1 is stored. Where z is 0 and the writer subtracted inside packed words, "
        "the neighbouring fields lost one. Reading the words back as a whole repairs that; kernels that add 1 field by "
        "field do not, and get those groups wrong. Export as gptq_v2.",
    ),
    "DP018": (
        "group numbers against desc_act",
        "g_idx says which group each input row belongs to. vLLM drops it on loading and takes row // group_size: right "
        "only where g_idx says the same. A config with desc_act false whose g_idx is in another order is served with "
        "wrong scales. One with desc_act true whose g_idx is in order is refused for nothing: setting desc_act to "
        "false starts it, with the same numbers.",
    ),
    "DP019": (
        "activation scales that were never calibrated",
        "Every input_scale is exactly 1.0. Calibration never reached these layers (experts that no token was routed "
        "to, a hook that was not called) and the placeholder was saved: activations above the range of the format are "
        "clipped. Calibrate again with all experts active.",
    ),
    "DP020": (
        "embedding and output head compared",
        "Both tables are stored. Where they are equal the head can be dropped and tied to the embedding, which saves "
        "its bytes on disk and, in engines that tie, in memory. Where they differ although the config ties them, the "
        "stored head is the one that was trained: vLLM compares and uses it, libraries that follow the config do not.",
    ),
    "DP021": (
        "special group numbers",
        "A g_idx names groups beyond those that the scales have, so that kernels which read it index past their end.",
    ),
}
