// Reads a GGUF file.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

[[noreturn]] inline void fail(const std::string &why) {
    std::fprintf(stderr, "engine: %s\n", why.c_str());
    std::exit(1);
}

struct Tensor {
    uint32_t type = 0;
    std::vector<uint64_t> extents; // the row's length first
    const uint8_t *data = nullptr;
};

class Gguf {
    std::vector<uint8_t> bytes;
    size_t at = 0;
    std::map<std::string, double> numbers;
    std::map<std::string, std::string> texts;
    std::map<std::string, Tensor> tensors;

    template <class T>
    T take() {
        T v;
        std::memcpy(&v, bytes.data() + at, sizeof v);
        at += sizeof v;
        return v;
    }
    std::string string() {
        const uint64_t n = take<uint64_t>();
        std::string s((const char *)bytes.data() + at, n);
        at += n;
        return s;
    }
    void value(uint32_t kind, const std::string &name) {
        switch (kind) {
        case 0: numbers[name] = take<uint8_t>(); break;
        case 1: numbers[name] = take<int8_t>(); break;
        case 2: numbers[name] = take<uint16_t>(); break;
        case 3: numbers[name] = take<int16_t>(); break;
        case 4: numbers[name] = take<uint32_t>(); break;
        case 5: numbers[name] = take<int32_t>(); break;
        case 6: numbers[name] = take<float>(); break;
        case 7: numbers[name] = take<uint8_t>(); break;
        case 8: texts[name] = string(); break;
        case 9: {
            const uint32_t inner = take<uint32_t>();
            const uint64_t n = take<uint64_t>();
            for (uint64_t i = 0; i < n; i++) value(inner, name + "[]");
            break;
        }
        case 10: numbers[name] = (double)take<uint64_t>(); break;
        case 11: numbers[name] = (double)take<int64_t>(); break;
        case 12: numbers[name] = take<double>(); break;
        default: fail("a value of an unknown kind");
        }
    }

public:
    explicit Gguf(const std::string &path) {
        std::ifstream in(path, std::ios::binary | std::ios::ate);
        if (!in) fail("cannot read " + path);
        bytes.resize((size_t)in.tellg());
        in.seekg(0);
        in.read((char *)bytes.data(), (std::streamsize)bytes.size());
        at = 8;
        const uint64_t count = take<uint64_t>(), keys = take<uint64_t>();
        for (uint64_t i = 0; i < keys; i++) {
            const std::string name = string();
            value(take<uint32_t>(), name);
        }
        std::vector<std::pair<std::string, uint64_t>> offsets;
        for (uint64_t i = 0; i < count; i++) {
            const std::string name = string();
            Tensor t;
            t.extents.resize(take<uint32_t>());
            for (auto &e : t.extents) e = take<uint64_t>();
            t.type = take<uint32_t>();
            offsets.push_back({name, take<uint64_t>()});
            tensors[name] = t;
        }
        const size_t alignment = numbers.count("general.alignment") ? (size_t)numbers["general.alignment"] : 32;
        const size_t start = (at + alignment - 1) / alignment * alignment;
        for (auto &o : offsets) tensors[o.first].data = bytes.data() + start + o.second;
    }
    bool has(const std::string &name) const { return tensors.count(name) > 0; }
    const Tensor &tensor(const std::string &name) const {
        auto found = tensors.find(name);
        if (found == tensors.end()) fail("no tensor " + name);
        return found->second;
    }
    std::string text(const std::string &name) const { return texts.count(name) ? texts.at(name) : ""; }
    double real(const std::string &name) const {
        if (!numbers.count(name)) fail("no key " + name);
        return numbers.at(name);
    }
    double real(const std::string &name, double other) const { return numbers.count(name) ? numbers.at(name) : other; }
    long integer(const std::string &name) const { return (long)real(name); }
    long integer(const std::string &name, long other) const { return (long)real(name, (double)other); }
};
