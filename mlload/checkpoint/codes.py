"""Texts of the findings about files: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, explanation: what it means, why engines fail, what to do).
CODES: dict[str, tuple[str, str]] = {
    "FI001": (
        "git-lfs pointer instead of a file",
        "The repository was cloned without git-lfs, so that a text of some 130 bytes stands where the file should be. "
        "Engines stop at its first bytes with an error about the header. Run `git lfs pull` in the folder, or "
        "download with `hf download`.",
    ),
    "FI002": (
        "error page saved as a file",
        "A download got an HTML, XML or JSON error (no permission, not found, rate limit) and saved it under the "
        "file's name. Engines report a header that is too large. Log in where the model is gated, and download it "
        "again.",
    ),
    "FI003": (
        "pickle under a safetensors name",
        "The file is what torch.save writes, with its name changed. No safetensors reader takes it, and reading it as "
        "a pickle can run any code. Take the publisher's safetensors file, or convert it with weights_only=True.",
    ),
    "FI004": (
        "empty file",
        "The file has no bytes: a copy or a download was interrupted, or the disk was full. Fetch it again.",
    ),
    "FI005": (
        "shorter than a header's length",
        "A safetensors file begins with 8 bytes that tell how long its header is, and this file is shorter than that: "
        "an interrupted copy. Fetch it again.",
    ),
    "FI006": (
        "header length cannot be true",
        "The first 8 bytes of a safetensors file tell the length of its header. Here they give more than the file has "
        "(it is cut off, or it is another kind of file), or too little for any header, or zeros (space was reserved "
        "and never written). Fetch the file again.",
    ),
    "FI007": (
        "header above the limit of readers",
        "safetensors refuses headers of more than 100,000,000 bytes, though such a file can be sound: it holds a "
        "million tensors or more, as mixtures of experts can with one tensor per expert and scale. The limit is fixed "
        "in every reader. Split the tensors over more files, or stack small ones.",
    ),
    "FI008": (
        "header is no JSON object",
        "A safetensors header is a JSON object in UTF-8. This one does not start with {, breaks off, holds bytes that "
        "are no text, or nests too deeply. The header is damaged: no tensor of the file can be located. Fetch it "
        "again.",
    ),
    "FI009": (
        "key twice in a header",
        "The header names the same tensor, or the same field of a tensor, twice. Which one counts depends on the "
        "reader; safetensors refuses some of these files. The program that wrote it is at fault: write it anew.",
    ),
    "FI010": (
        "malformed entry of a header",
        "A tensor's entry must have a dtype (text), a shape (whole numbers from 0) and data_offsets (two such "
        "numbers, the first not above the second). Readers refuse the whole file for one entry that differs: a "
        "fraction, a negative number, true or null in place of a number, a missing field. Unknown extra fields are "
        "only mentioned.",
    ),
    "FI011": (
        "unknown dtype",
        "The header names a dtype that safetensors 0.8 does not define. When its sizes are plausible it is a newer "
        "one: readers from before it refuse the file, so the engine's safetensors must be recent enough. When they "
        "are not, the header is damaged.",
    ),
    "FI012": (
        "shape, dtype and bytes disagree",
        "A tensor's shape times the size of its dtype must be the bytes that its offsets give it. Where they differ, "
        "header or data were changed without the other, and readers refuse the file. Fetch it again.",
    ),
    "FI013": (
        "cut off: tensors end past the end of the file",
        "The header promises more bytes than the file has: a copy or download stopped early. Readers that map the "
        "file without checking return zeros or garbage for those tensors, which shows as nonsense answers, not as an "
        "error. Fetch the file again and compare its size.",
    ),
    "FI014": (
        "tensors overlap",
        "Two tensors claim the same bytes. Neither safetensors nor GGUF permits that; the header is damaged or was "
        "made to deceive. Fetch the file again.",
    ),
    "FI015": (
        "holes in the data",
        "Between two tensors lie bytes that belong to none. safetensors requires the data to be covered without "
        "holes, and refuses the file. It was edited, or written by a faulty program.",
    ),
    "FI016": (
        "bytes after the last tensor",
        "The file is longer than its header says: two files joined, a resumed download that started over, or padding. "
        "safetensors refuses it. Fetch the file again.",
    ),
    "FI017": (
        "__metadata__ is no map of texts",
        "The optional `__metadata__` of a safetensors header maps texts to texts; with numbers, lists or null in it, "
        "readers refuse the whole file.",
    ),
    "FI018": (
        "no format in __metadata__",
        "The header has no `__metadata__`, or none with `format`. Engines do not need it; some versions of "
        "transformers want `format: pt` and fail without. `mlload repair` and every writer here set it.",
    ),
    "FI019": (
        "header without tensors",
        "The file is legal and empty: a header and no tensor. Usually a shard that was written before its tensors "
        "were, or whose filter matched nothing. Engines load nothing from it.",
    ),
    "FI020": (
        "odd tensor name",
        "A tensor's name is empty or holds NUL or other characters that cannot be printed. Readers take it and no "
        "model class expects it: damage, or an attempt to hide something in a log.",
    ),
    "FI021": (
        "another kind of file under this name",
        "The first bytes are those of another format (an archive, a GGUF file, HDF5, ...). Rename or unpack it, or "
        "fetch the right file.",
    ),
    "FI022": (
        "file cannot be read",
        "The file is listed and cannot be read: permissions, a broken disk, a dropped connection. Nothing is known "
        "about its content.",
    ),
    "FI023": (
        "dangling link",
        "The name is a link whose target is gone, as in a Hub cache whose blobs were cleaned or copied without them "
        "(copy with `cp -L` or rsync -L). Engines see no file. Fetch it again.",
    ),
    "FI026": (
        "numbered file missing",
        "The names say how many files there are (-00001-of-00004), one of the numbers is absent, and there is no "
        "index that would tell what it held. vLLM loads what it finds; with a quantized model it does not notice what "
        "is missing and answers nonsense. Fetch the file.",
    ),
    "FI027": (
        "several files, no index",
        "The weights lie in numbered files without an index. vLLM reads all of them; transformers needs "
        "model.safetensors.index.json. `mlload repair` writes it from the headers.",
    ),
    "FI030": (
        "index cannot be used",
        "`*.index.json` is no JSON object with a weight_map from tensor names to file names. vLLM reads it to choose "
        "the files, and fails. `mlload repair` writes a new one from the headers.",
    ),
    "FI031": (
        "file of the index missing",
        "The index names a file that is not there, usually because a download was interrupted. vLLM refuses to start; "
        "some other loaders leave the layers of that file at random values. Fetch the file.",
    ),
    "FI032": (
        "tensor is not where the index says",
        "The index maps a tensor to a file whose header does not have it. Where another file has it, engines that "
        "read whole files find it all the same; where none has, the weight is missing. Fetch the file again, or write "
        "a new index with `mlload repair`.",
    ),
    "FI033": (
        "tensor in a file, not in the index",
        "A file of the index holds tensors that the index does not name. vLLM loads them, others do not; draft layers "
        "get lost this way. `mlload repair` completes the index.",
    ),
    "FI034": (
        "weight file outside the index",
        "A weight file lies beside the others and no index names it: a leftover of a conversion or another "
        "quantization, or a part that the index forgot. Engines do not read it. Delete it, or complete the index with "
        "`mlload repair`.",
    ),
    "FI035": (
        "tensor in more than one file",
        "Two files hold a tensor of the same name. One loader takes the first, another the last, another stops. Where "
        "dtype, shape or bytes differ the result depends on the loader. `mlload repair` keeps one of them.",
    ),
    "FI036": (
        "total_size of the index is wrong",
        "The index claims another number of bytes than the tensors take. No engine relies on it; tools that estimate "
        "memory do. `mlload repair` corrects it.",
    ),
    "FI037": (
        "index leads out of the folder",
        "An entry of the index is an absolute path or contains `..`. A checkpoint has no business outside its folder: "
        "the entry is not followed. Treat the source with suspicion.",
    ),
    "FI038": (
        "more than one set of weights",
        "The source holds the weights more than once: `consolidated*` in the publisher's own layout beside `model-*` "
        "for transformers, or several quantizations as GGUF. The set that config.json describes is judged here. "
        "vLLM's `--load-format auto` prefers `consolidated*` for the weights; `--load-format safetensors` takes the "
        "other.",
    ),
    "FI039": (
        "tensor twice in the index",
        "The index names the same tensor twice, with JSON's last word counting. `mlload repair` writes a clean one.",
    ),
    "FI040": (
        "no GGUF file of a known version",
        "The file does not begin with GGUF, or its version is none that readers know (2 and 3). Version 1 was in use "
        "for a few weeks of 2023: convert the original weights again.",
    ),
    "FI041": (
        "GGUF header is damaged",
        "Counts, lengths or types in the metadata cannot be true: the file is cut off inside its header or was "
        "altered. Nothing is allocated by what it claims. Fetch it again.",
    ),
    "FI042": (
        "GGUF tensor cannot be laid out",
        "A tensor has a type that ggml removed or never had, a wrong number of dimensions, rows that are no multiple "
        "of its block, or the file an alignment that is no power of two. Convert the original weights again with a "
        "current converter.",
    ),
    "FI044": (
        "part of a split GGUF missing",
        "A split model is of use only with all its parts (-00001-of-0000N), and their counts must agree. Fetch the "
        "missing part.",
    ),
    "FI045": (
        "GGUF key or tensor twice",
        "A metadata key or a tensor name comes twice, and readers refuse the file. Convert the original weights "
        "again with a current converter.",
    ),
    "FI046": (
        "big-endian GGUF",
        "The file was converted for big-endian machines. Engines on today's CPUs and GPUs cannot read it; convert it "
        "again without that option.",
    ),
    "FI047": (
        "config.json of another format beside GGUF",
        "The folder holds GGUF weights and a config.json that declares a quantization of other files, usually the "
        "original model's. The weights tell the truth: the model is GGUF. Engines that read the config first refuse "
        "with a method that does not match. Remove quantization_config from that config.json, or move the GGUF files.",
    ),
    "FI048": (
        "GGUF tensors not in a row",
        "Tensors of a GGUF file lie one behind the other, each at a multiple of the alignment. llama.cpp refuses "
        "other layouts; other readers go by the offsets.",
    ),
    "FI049": (
        "GGUF without an architecture",
        "`general.architecture` is missing from the metadata: no reader knows which model the tensors belong to.",
    ),
    "FI050": (
        "pickle that would run code",
        "A .bin or .pt file is a program that unpickling runs. This one imports names that "
        "torch.load(weights_only=True) does not take, or carries TorchScript code. Engines load with weights_only and "
        "refuse it; anything that loads it without runs what it says. mlload lists such files without running them. "
        "Take the publisher's safetensors files.",
    ),
    "FI051": (
        "torch file cannot be listed",
        "The file is no torch.save archive, is cut off, or describes tensors in a way that is not understood. Nothing "
        "of it was executed. Fetch it again, or convert it where it was made.",
    ),
    "FI052": (
        "training checkpoint instead of weights",
        "The tensors lie below other keys (`model`, `state_dict`, `optimizer`), as trainers save them. Engines want a "
        "flat dictionary of names. Save only the model's state_dict.",
    ),
    "FI060": (
        "config.json missing",
        "There are weights and neither config.json nor params.json: an engine does not know which architecture they "
        "are, and does not start. Fetch the file from the repository.",
    ),
    "FI061": (
        "JSON file cannot be parsed",
        "A JSON file of the checkpoint is damaged, or holds another kind of value than an object. For config.json and "
        "its like the engine stops at once.",
    ),
    "FI063": (
        "adapter, not a model",
        "The folder holds a LoRA (or another PEFT) adapter: small matrices that mean something only with the model "
        "that they were trained on. Serve the base model with the adapter, or merge it into the base.",
    ),
    "FI064": (
        "no weights at the top of the source",
        "Engines read the weight files of the top folder. There are none here: either the source is a config alone, "
        "which is enough to judge sizes, or the weights lie in a folder below, or this is no checkpoint.",
    ),
    "FI065": (
        "ranks of a sharded checkpoint missing",
        "A sharded_state checkpoint holds a set of files for every rank that it was cut for. Some are missing, and "
        "the engine stops with missing keys.",
    ),
    "FI066": (
        "tensorizer file is damaged",
        "The magic, the version or the table of contents of a tensorizer file cannot be true: it is cut off, or was "
        "written by a version of tensorizer that is not known here. Fetch it again.",
    ),
}
