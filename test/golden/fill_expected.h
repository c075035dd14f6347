/* Made by scripts/golden/model.py: FNV-1a over the bytes of what fill.h makes. */
#ifndef GOLDEN_FILL_EXPECTED_H
#define GOLDEN_FILL_EXPECTED_H

static const struct {
    const char *name;
    int64_t n;
    uint64_t hash;
} expected_weights[] = {
    { "embedding.weight", 3072, 0x828bd13526e9f094u },
    { "layers.0.attention_norm.weight", 32, 0x616a30c46c1cd710u },
    { "layers.0.qkv.weight", 2048, 0xd360b574f865807bu },
    { "layers.0.attention_out.weight", 1024, 0x1205ea22afaaa4e5u },
    { "layers.0.ffn_norm.weight", 32, 0xe758150916615641u },
    { "layers.0.gate_up.weight", 3072, 0xf91f566351ae75c2u },
    { "layers.0.down.weight", 1536, 0xbdcf754063886279u },
    { "layers.1.attention_norm.weight", 32, 0xd865b5c3997cdf15u },
    { "layers.1.qkv.weight", 2048, 0x0174cc56e043dcc8u },
    { "layers.1.attention_out.weight", 1024, 0x69ca9bd28d3a0fabu },
    { "layers.1.ffn_norm.weight", 32, 0x8aa06d77d4b11df7u },
    { "layers.1.gate_up.weight", 3072, 0xa17b1894730a661au },
    { "layers.1.down.weight", 1536, 0x5f90d0063321a51eu },
    { "final_norm.weight", 32, 0x9ddc39c778d55e43u },
    { "head.weight", 3072, 0x83941e3f1e28a54bu },
    { "position.weight", 1024, 0x3d0c742ba4b515a6u },
    { "layers.0.attention_norm.bias", 32, 0xf047b5e260f3747eu },
    { "layers.0.qkv.weight", 3072, 0x69422fdb4a895079u },
    { "layers.0.qkv.bias", 96, 0xb161d929258fa754u },
    { "layers.0.attention_out.bias", 32, 0xb3ec184754d5a920u },
    { "layers.0.ffn_norm.bias", 32, 0x3774760a4636e6d8u },
    { "layers.0.up.weight", 4096, 0xf8dbb1f41308ef7eu },
    { "layers.0.up.bias", 128, 0x615f0a69103d600bu },
    { "layers.0.down.weight", 4096, 0x83bf8cc78c7afb78u },
    { "layers.0.down.bias", 32, 0xa65ee1ea7c1edcecu },
    { "layers.1.attention_norm.bias", 32, 0xfe1b23205c6dce26u },
    { "layers.1.qkv.weight", 3072, 0x6145f907594e7d86u },
    { "layers.1.qkv.bias", 96, 0x0e3ca8650346f62bu },
    { "layers.1.attention_out.bias", 32, 0x4484071451513ee3u },
    { "layers.1.ffn_norm.bias", 32, 0x76ab254124f46faau },
    { "layers.1.up.weight", 4096, 0x146a9ea471b1c70cu },
    { "layers.1.up.bias", 128, 0xc4d6a437ecbaf737u },
    { "layers.1.down.weight", 4096, 0xdfd8f298359ee1d3u },
    { "layers.1.down.bias", 32, 0x7285f12620b2e7abu },
    { "final_norm.bias", 32, 0x32f63e24ed485f77u },
};

static const struct {
    int step;
    uint64_t tokens, targets;
} expected_batches[] = {
    { -1, 0x5c5018be0ca05e47u, 0x5f8ebd76a5840497u },
    { 0, 0x42c3b446ca2a000bu, 0x117da113b0c80681u },
    { 1, 0x0bd9d2bb54cbc334u, 0x0b49bf5a9a9da4e5u },
    { 2, 0x414611f588fe67c5u, 0x1e3bfeabce71c640u },
    { 3, 0x3a3d3b090635d2b6u, 0x8bad8323460f7a67u },
    { 4, 0xebcdce5497ddccabu, 0xc774048979016e2cu },
    { 5, 0xeca50eaff5bcbf0bu, 0x82e15fae76899840u },
    { 6, 0x0a702eb057afb567u, 0x55f3ede89666238bu },
    { 7, 0x872cd449ae0a1988u, 0x121f010445060eceu },
    { 8, 0x7a195bc494d311a9u, 0x245ca0986bc3cb47u },
    { 9, 0x1ae160cfc0481fb3u, 0xb9a7fc80d933c51bu },
    { 10, 0x008b40c121fdd01au, 0x3921770ef84223a5u },
    { 11, 0x29eb516dbb908f50u, 0x69c6bd27026399adu },
    { 12, 0xe90f56cc2393cc50u, 0xae05df3b452c18dfu },
    { 13, 0x85e41b062716afb0u, 0x6db7faa0e837ab10u },
    { 14, 0xfe84f4161004b499u, 0xdd0864a1b9b29c0au },
    { 15, 0xc120d0659e35a5c5u, 0x41f31d829ef78c00u },
    { 16, 0xa9b3c6c5aacb27dfu, 0x3363b581392182ebu },
    { 17, 0x3b682880bbe1f599u, 0x7debded8f52eefe9u },
    { 18, 0x4ea03a4d7e1e666au, 0x36bdcfe4d3ae4a35u },
    { 19, 0xd4a4c469bc8508a5u, 0xc9f811cd1b0516e6u },
};

static const uint64_t expected_prompt = 0xec15e9394c23e3f0u;

#endif
