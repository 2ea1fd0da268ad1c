"""The models of the round, as options of `qdiff synth`."""
MODELS = {}
MODELS.update({
 "hybrid":  "--arch qwen35 --layers 4 --weights bf16 --seed 111",
 "hybrid8": "--arch qwen35 --layers 2 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights q8_0 --seed 112",
 "hybrid4": "--arch qwen35 --layers 3 --weights q5_0 --seed 113",
 "q4km":    "--arch qwen3 --layers 3 --weights q4_K --tensor blk.0.attn_v.weight=q6_K --tensor blk.0.ffn_down.weight=q6_K --tensor blk.2.attn_v.weight=q6_K --tensor blk.2.ffn_down.weight=q6_K --tensor output.weight=q6_K --seed 114",
 "untied":  "--arch qwen2 --heads 8 --kv-heads 2 --weights f16 --vocab 700 --seed 115",
 "yarn":    "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --context 8192 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=2048 --weights q8_0 --seed 116",
 "twelve":  "--arch qwen2 --embedding 384 --heads 12 --kv-heads 2 --head-dim 32 --weights q5_0 --seed 117",
 "moe":     "--arch qwen3moe --layers 3 --weights q4_0 --seed 118",
 "moe16":   "--arch qwen3moe --heads 6 --kv-heads 3 --embedding 192 --head-dim 64 --weights f16 --set expert_count=12 --set expert_used_count=4 --seed 119",
 "odd":     "--arch qwen2 --ffn 544 --tied --weights q8_0 --seed 120",
 "d96":     "--arch qwen3 --embedding 288 --head-dim 96 --heads 3 --kv-heads 1 --weights q8_0 --seed 121",
 "plain":   "--arch qwen2 --weights q4_0 --seed 122",
 "deep":    "--arch qwen2 --layers 4 --heads 4 --kv-heads 4 --weights bf16 --seed 123",
 "three":   "--arch qwen3 --weights q8_0 --rope-base 10000 --seed 124",
 "wide":    "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights f16 --seed 125",
 "two8":    "--arch qwen2 --embedding 256 --heads 8 --kv-heads 4 --weights q8_0 --seed 126",
 "small":   "--arch qwen2 --layers 3 --heads 4 --kv-heads 1 --weights q8_0 --seed 127",
})
