"""Model types that transformers 5 gives a tokenizer class of their own (TOKENIZER_MAPPING_NAMES, 5.24).

Without a file that holds a vocabulary such a class is built all the same, with an empty one; for every other type
the generic class refuses to be built.
"""

_NAMES = """
    aimv2 albert align audioflamingo3 aya_vision bark bart barthez bartpho bert bert-japanese bertweet
    big_bird biogpt blenderbot blenderbot-small blip blip-2 bridgetower bros byt5 camembert canine
    chinese_clip clap clip clipseg clvp code_llama codegen cohere cohere2 colqwen2 convbert cosmos3_omni cpm
    cpmant ctrl data2vec-audio data2vec-text dbrx deberta deberta-v2 dia diffusion_gemma distilbert dots3_note
    dpr electra emu3 ernie esm esmc esmfold2 falcon_mamba flaubert flava florence2 fnet fsmt fun_asr_nano
    funnel gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text git gpt2 gpt_neo gpt_neox gpt_neox_japanese
    gptj granite_speech5_ctc grounding-dino groupvit gte herbert hubert hunyuan_vl hyperclovax_vision_v2 ibert
    idefics idefics2 instructblip instructblipvideo internvl jais2 jina_embeddings_v3 lasr_ctc lasr_encoder
    layoutlm layoutlmv2 layoutlmv3 layoutxlm led lighton_ocr lilt longformer luke lxmert mamba mamba2 markuplm
    mbart mbart50 mega megatron-bert metaclip_2 mgp-str mm-grounding-dino mobilebert moss_transcribe_diarize
    mpnet mpt mra mt5 musicgen musicgen_melody mvp myt5 nemotron3_5_asr nemotron_asr_streaming nezha nllb
    nllb-moe nomic_bert nougat olmo olmoe omdet-turbo omniasr_ctc oneformer openai-gpt opt ovis2 owlv2 owlvit
    parakeet_ctc parakeet_rnnt parakeet_tdt pegasus perceiver phi phobert plbart pp_formulanet prophetnet
    qdqbert qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe
    qwen3_5_moe_text qwen3_5_text qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe
    qwen4_exp rag realm recurrent_gemma reformer rembert retribert roberta roberta-prelayernorm roc_bert
    roformer rwkv sam3 sam3_video seamless_m4t seamless_m4t_v2 shieldgemma2 siglip2 splinter squeezebert
    starcoder2 switch_transformers t5 t5gemma tapas trocr tvp udop unispeech unispeech-sat vibevoice
    videoprism vilt visual_bert vits wav2vec2 wav2vec2-bert wav2vec2-conformer wav2vec2_phoneme whisper xclip
    xglm xlm xlm-roberta xlnet xlstm xmod yoso zaya
"""

OWN_CLASS = frozenset(_NAMES.split())
