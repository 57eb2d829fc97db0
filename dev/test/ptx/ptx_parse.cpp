// ptx_parse.cpp: reads PTX text into instructions whose operands are register numbers.
#include "ptx.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace {

typedef std::vector<std::string> Words;

[[noreturn]] void refuse(int line, const std::string& what) {
    cuda_on_host_die("PTX line %d: %s", line, what.c_str());
}

bool starts_with(const std::string& s, const char* head) { return s.compare(0, strlen(head), head) == 0; }

std::string trim(const std::string& s) {
    const size_t a = s.find_first_not_of(" \t\r\n"), b = s.find_last_not_of(" \t\r\n");
    return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

Words split(const std::string& s, const char* separators) {
    Words words;
    for (size_t a = 0; (a = s.find_first_not_of(separators, a)) != std::string::npos;) {
        const size_t b = std::min(s.find_first_of(separators, a), s.size());
        words.push_back(s.substr(a, b - a));
        a = b;
    }
    return words;
}

// Splits operands at the commas that are outside of braces and brackets.
Words operands_of(const std::string& s) {
    Words all(1);
    int depth = 0;
    for (const char c : s) {
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == ',' && depth == 0) all.emplace_back();
        else all.back() += c;
    }
    for (std::string& o : all) o = trim(o);
    if (all.size() == 1 && all[0].empty()) all.clear();
    return all;
}

// Not static variables in functions, which the emulation treats as shared memory (cuda_on_host.h).
const std::map<std::string, size_t> type_bytes = {{"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2},
                                                  {"s16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4}, {"f32", 4},
                                                  {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};
const std::map<std::string, uint16_t> special_registers = {
    {"%tid.x", PTX_TID}, {"%tid.y", PTX_TID + 1}, {"%tid.z", PTX_TID + 2},
    {"%ntid.x", PTX_NTID}, {"%ntid.y", PTX_NTID + 1}, {"%ntid.z", PTX_NTID + 2},
    {"%ctaid.x", PTX_CTAID}, {"%ctaid.y", PTX_CTAID + 1}, {"%ctaid.z", PTX_CTAID + 2},
    {"%nctaid.x", PTX_NCTAID}, {"%nctaid.y", PTX_NCTAID + 1}, {"%nctaid.z", PTX_NCTAID + 2},
    {"%laneid", PTX_LANE}};

size_t bytes_of_type(const std::string& type, int line) {
    const auto found = type_bytes.find(type);
    if (found == type_bytes.end()) refuse(line, "unknown type ." + type);
    return found->second;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A declaration without its state space: `.align 8 .b8 name[40]` or `.u64 name`
struct Declared {
    std::string name;
    size_t align = 1, bytes = 0;
};

Declared declared(const std::string& text, int line) {
    Declared d;
    size_t element = 1, count = 1;
    const Words words = split(text, " \t\r\n");
    bool pointer = false;   // after .ptr, attributes describe the memory that the parameter points to
    for (size_t i = 0; i < words.size(); i++) {
        if (words[i] == ".ptr") pointer = true;
        else if (words[i] == ".align" && i + 1 < words.size()) {
            i++;
            if (!pointer) d.align = std::stoul(words[i]);
        }
        else if (pointer && words[i][0] == '.') continue;   // a state space
        else if (words[i][0] == '.') element = bytes_of_type(words[i].substr(1), line);
        else d.name = words[i];
    }
    const size_t bracket = d.name.find('[');
    if (bracket != std::string::npos) {
        const std::string n = d.name.substr(bracket + 1, d.name.find(']') - bracket - 1);
        count = n.empty() ? 0 : std::stoul(n);
        d.name.resize(bracket);
    }
    d.bytes = element * count;
    d.align = std::max(d.align, element);
    return d;
}

struct Parser {
    PtxModule* module;
    const std::string& text;
    size_t at = 0;
    int line = 1;
    PtxInstruction located;   // empty, with the source location of the last .loc
    // Of the current kernel
    PtxKernel* k = nullptr;
    std::unordered_map<std::string, uint16_t> registers;
    std::map<uint64_t, uint16_t> constants;   // by value
    std::unordered_map<std::string, int64_t> labels, params, local;
    std::unordered_map<std::string, uint32_t> shared;
    std::vector<std::pair<size_t, std::string>> branches;
    std::map<std::string, Declared> module_shared;
    std::string dynamic;

    Parser(PtxModule* m, const std::string& t) : module(m), text(t) {}

    // -- characters and statements --

    void advance() {
        if (text[at] == '\n') line++;
        at++;
    }
    void skip_space() {
        while (at < text.size()) {
            if (text.compare(at, 2, "//") == 0) while (at < text.size() && text[at] != '\n') at++;
            else if (isspace((unsigned char)text[at])) advance();
            else break;
        }
    }
    // Reads up to the first character in `ends`, and skips that. Removes comments.
    std::string read_until(const char* ends) {
        std::string s;
        for (; at < text.size() && !strchr(ends, text[at]); advance()) {
            if (text.compare(at, 2, "//") == 0) while (at + 1 < text.size() && text[at + 1] != '\n') at++;
            else s += text[at];
        }
        if (at < text.size()) advance();
        return s;
    }
    std::string read_line() { return read_until("\n"); }

    // -- operands --

    uint16_t new_register(uint64_t value, bool defined) {
        if (k->registers.size() >= UINT16_MAX) refuse(line, "too many registers");
        k->registers.push_back(value);
        k->undefined.push_back(!defined);
        return (uint16_t)(k->registers.size() - 1);
    }
    uint16_t constant(uint64_t value) {
        const auto found = constants.find(value);
        if (found != constants.end()) return found->second;
        return constants[value] = new_register(value, true);
    }
    uint32_t shared_address(const Declared& d) {
        const size_t offset = round_up(k->shared_bytes, d.align);
        k->shared_bytes = offset + d.bytes;
        return shared[d.name] = PTX_SHARED_BASE + (uint32_t)offset;
    }
    // Sets *r to the register that holds the address of a symbol. Returns false if there is no such symbol.
    bool symbol(const std::string& name, uint16_t* r) {
        const auto p = params.find(name);
        if (p != params.end()) return *r = constant((uint64_t)p->second), true;
        const auto l = local.find(name);
        if (l != local.end()) return *r = constant((uint64_t)l->second), true;
        if (name == dynamic) return *r = PTX_DYNAMIC, true;
        const auto s = shared.find(name);
        if (s != shared.end()) return *r = constant(s->second), true;
        const auto m = module_shared.find(name);
        if (m != module_shared.end()) return *r = constant(shared_address(m->second)), true;
        return false;
    }
    uint16_t number(const std::string& s) {
        char* end;
        uint64_t value;
        if (starts_with(s, "0f") || starts_with(s, "0d")) value = strtoull(s.c_str() + 2, &end, 16);
        else value = s[0] == '-' ? (uint64_t)strtoll(s.c_str(), &end, 0) : strtoull(s.c_str(), &end, 0);
        if (*end && strcmp(end, "U") != 0) refuse(line, "unknown operand " + s);
        return constant(value);
    }
    uint16_t operand(const std::string& s) {
        uint16_t r;
        if (s.empty()) refuse(line, "missing operand");
        const auto known = registers.find(s);
        if (known != registers.end()) return known->second;
        const auto found = special_registers.find(s);
        if (found != special_registers.end()) return found->second;
        if (symbol(s, &r)) return r;
        if (s == "WARP_SZ") return constant(32);
        if (!isdigit((unsigned char)s[0]) && s[0] != '-') refuse(line, "unknown operand " + s);
        return number(s);
    }
    uint16_t destination(const std::string& s) {
        const auto known = registers.find(s);
        if (known == registers.end()) refuse(line, "unknown destination " + s);
        return known->second;
    }
    // Registers of {a, b, …} or a
    std::vector<uint16_t> vector_of(const std::string& s, bool written) {
        std::vector<uint16_t> all;
        const std::string inner = s[0] == '{' ? s.substr(1, s.size() - 2) : s;
        for (const std::string& o : operands_of(inner)) all.push_back(written ? destination(o) : operand(o));
        if (all.size() > 4) refuse(line, "a vector of more than 4 elements");
        return all;
    }
    // [register], [symbol], [register+number], …
    void address(PtxInstruction* i, const std::string& s) {
        if (s.size() < 3 || s[0] != '[' || s.back() != ']') refuse(line, "not an address: " + s);
        std::string inner = trim(s.substr(1, s.size() - 2));
        const size_t plus = inner.find('+');
        if (plus != std::string::npos) {
            i->offset = std::stoll(inner.substr(plus + 1));
            inner = trim(inner.substr(0, plus));
        }
        i->address = operand(inner);
    }

    // -- instructions --

    void declare_registers(const std::string& statement) {   // .reg .f32 %f<108>; or .reg .b64 %tmp;
        const Words words = split(statement.substr(4), " \t\r\n");
        if (words.size() < 2) refuse(line, "unknown declaration " + statement);
        for (const std::string& name : operands_of(statement.substr(statement.find('%')))) {
            const size_t count = name.find('<');
            if (count == std::string::npos) {
                if (!registers.count(name)) registers[name] = new_register(0, false);
                continue;
            }
            for (int n = 0; n < std::stoi(name.substr(count + 1)); n++)
                registers[name.substr(0, count) + std::to_string(n)] = new_register(0, false);
        }
    }

    // mov of a vector: {a, b} = x or x = {a, b}
    bool move_vector(PtxInstruction* i, const Words& parts, const Words& ops) {
        if (parts[0] != "mov" || ops.size() != 2 || (ops[0][0] != '{' && ops[1][0] != '{')) return false;
        const bool unpack = ops[0][0] == '{';
        const std::vector<uint16_t> many = vector_of(ops[unpack ? 0 : 1], unpack);
        const size_t bytes = bytes_of_type(parts.back(), line) / many.size();
        const auto found = ptx_opcodes().find(unpack ? "mov.unpack" : "mov.pack");
        i->run = found->second.run;
        i->count = (uint8_t)many.size();
        i->bytes = (uint8_t)bytes;
        i->r[0] = unpack ? operand(ops[1]) : destination(ops[0]);
        std::copy(many.begin(), many.end(), i->r + 1);
        return true;
    }

    bool memory(PtxInstruction* i, const Words& parts, const Words& ops) {
        if (parts[0] != "ld" && parts[0] != "st" && parts[0] != "atom") return false;
        bool from_registers;
        i->run = ptx_memory_run(parts[0], {parts.begin() + 1, parts.end() - 1}, &from_registers);
        if (!i->run) return false;
        i->bytes = (uint8_t)bytes_of_type(parts.back(), line);
        i->is_signed = parts.back()[0] == 's';
        i->type = parts.back() == "f32" ? PTX_F32 : parts.back() == "f64" ? PTX_F64 : PTX_BITS;
        if (parts[0] == "atom") {
            if (ops.size() != 3) refuse(line, "unknown form of " + std::string(i->opcode));
            i->count = 1;
            i->r[0] = ops[0] == "_" ? new_register(0, false) : destination(ops[0]);
            address(i, ops[1]);
            i->r[1] = operand(ops[2]);
            return true;
        }
        if (ops.size() != 2) refuse(line, "unknown form of " + std::string(i->opcode));
        const std::vector<uint16_t> all = vector_of(ops[from_registers ? 1 : 0], !from_registers);
        address(i, ops[from_registers ? 0 : 1]);
        i->count = (uint8_t)all.size();
        const bool v2 = std::count(parts.begin(), parts.end(), "v2"), v4 = std::count(parts.begin(), parts.end(), "v4");
        if (all.size() != (v2 ? 2u : v4 ? 4u : 1u)) refuse(line, "vector of another length");
        std::copy(all.begin(), all.end(), i->r);
        return true;
    }

    void arithmetic(PtxInstruction* i, const std::string& opcode, const Words& ops) {
        const auto found = ptx_opcodes().find(opcode);
        if (found == ptx_opcodes().end()) refuse(line, "unknown instruction " + opcode);
        i->run = found->second.run;
        const std::string form = found->second.operands;
        if (form.size() != ops.size()) refuse(line, "unknown form of " + opcode);
        for (size_t n = 0, to = 0; n < form.size(); n++) {
            if (form[n] == 's') {
                i->r[to++] = operand(ops[n]);
                continue;
            }
            const size_t bar = ops[n].find('|');
            i->r[to++] = destination(ops[n].substr(0, bar));
            if (form[n] == 'p')   // the predicate, or an unused register
                i->r[to++] = bar == std::string::npos ? new_register(0, false) : destination(ops[n].substr(bar + 1));
            else if (bar != std::string::npos) refuse(line, "unknown form of " + opcode);
        }
    }

    void instruction(std::string s) {
        PtxInstruction i = located;
        i.line = line;
        if (s[0] == '@') {
            const size_t end = s.find_first_of(" \t");
            i.unless = s[1] == '!';
            i.guard = operand(s.substr(i.unless ? 2 : 1, end - (i.unless ? 2 : 1)));
            s = trim(s.substr(end));
        }
        const size_t space = s.find_first_of(" \t\n");
        const std::string opcode = s.substr(0, space);
        i.opcode = module->opcodes.insert(opcode).first->c_str();
        const Words parts = split(opcode, "."), ops = operands_of(s.substr(std::min(space, s.size())));
        if (parts[0] == "bra") {
            i.run = ptx_branch_run();
            branches.push_back({k->code.size(), ops.at(0)});
        } else if (!move_vector(&i, parts, ops) && !memory(&i, parts, ops)) {
            arithmetic(&i, opcode, ops);
        }
        k->code.push_back(i);
    }

    // -- kernels --

    void location() {   // .loc FILE LINE COLUMN [, function_name …, inlined_at FILE LINE COLUMN]
        const Words w = split(read_line(), " \t,");
        located = PtxInstruction();
        located.file = std::stoi(w.at(1));
        located.source = std::stoi(w.at(2));
        const auto call = std::find(w.begin(), w.end(), "inlined_at");
        if (w.end() - call < 3) return;
        located.from_file = std::stoi(call[1]);
        located.from = std::stoi(call[2]);
    }

    void statement() {   // including its semicolon or colon
        if (text[at] == '{' || text[at] == '}') return advance();
        if (text.compare(at, 4, ".loc") == 0) return location();
        const int first = line;
        std::string s;
        int depth = 0;
        for (; at < text.size(); advance()) {
            const char c = text[at];
            if (c == '{') depth++;
            if (c == '}') depth--;
            if (c == ';' || (c == ':' && s.find_first_of(" \t,") == std::string::npos)) break;
            if (depth < 0) refuse(line, "missing ;");
            s += c == '\n' ? ' ' : c;
        }
        if (at >= text.size()) refuse(first, "statement without end");
        const bool label = text[at] == ':';
        advance();
        const int last = line;
        line = first;
        s = trim(s);
        if (label) labels[s] = (int64_t)k->code.size();
        else if (starts_with(s, ".reg")) declare_registers(s);
        else if (starts_with(s, ".shared")) shared_address(declared(s.substr(7), line));
        else if (starts_with(s, ".local")) {
            const Declared d = declared(s.substr(6), line);
            k->local_bytes = round_up(k->local_bytes, d.align);
            local[d.name] = (int64_t)k->local_bytes;
            k->local_bytes += d.bytes;
        } else if (starts_with(s, ".pragma")) {
        } else if (s[0] == '.') refuse(line, "unknown directive " + s);
        else if (!s.empty()) instruction(s);
        line = last;
    }

    void parameters(const std::string& list) {
        for (const std::string& one : operands_of(list)) {
            if (!starts_with(one, ".param")) refuse(line, "unknown parameter " + one);
            const Declared d = declared(one.substr(6), line);
            k->param_bytes = round_up(k->param_bytes, d.align);
            params[d.name] = (int64_t)k->param_bytes;
            k->params.push_back({k->param_bytes, d.bytes});
            k->param_bytes += d.bytes;
        }
    }

    void entry() {   // after .entry
        const std::string name = trim(read_until("("));
        k = &module->kernels[name];
        *k = PtxKernel();
        k->name = name;
        k->line = line;
        registers.clear(), constants.clear(), labels.clear(), params.clear(), shared.clear(), local.clear();
        branches.clear();
        for (int r = 0; r < PTX_SPECIALS; r++) new_register(r == PTX_TRUE, true);
        constants[1] = PTX_TRUE;
        constants[0] = PTX_ZERO;
        parameters(read_until(")"));
        for (const std::string& d : split(read_until("{"), "\n")) {
            const Words w = split(d, " \t,");
            if (w.empty()) continue;
            if (w[0] == ".maxntid") {
                k->max_threads = 1;
                for (size_t i = 1; i < w.size(); i++) k->max_threads *= (unsigned)std::stoul(w[i]);
            } else if (w[0] != ".minnctapersm") refuse(line, "unknown directive " + w[0]);
        }
        for (int depth = 1;;) {
            skip_space();
            if (at >= text.size()) refuse(line, "kernel without end");
            depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
            if (depth == 0) break;
            statement();
        }
        advance();
        for (const auto& b : branches) {
            const auto to = labels.find(b.second);
            if (to == labels.end()) refuse(k->code[b.first].line, "unknown label " + b.second);
            k->code[b.first].offset = to->second;
        }
        k->shared_bytes = round_up(k->shared_bytes, 16);
        k->registers[PTX_DYNAMIC] = PTX_SHARED_BASE + k->shared_bytes;
    }

    void parse() {
        for (skip_space(); at < text.size(); skip_space()) {
            if (text[at] != '.') refuse(line, "unknown text " + read_line());
            const size_t end = text.find_first_of(" \t\n", at);
            const std::string word = text.substr(at, end - at);
            if (word == ".version" || word == ".address_size") read_line();
            else if (word == ".target") module->target = std::stoi(read_line().substr(strlen(".target sm_")));
            else if (word == ".file") {
                const Words w = split(read_line(), " \t\"");
                module->files[std::stoi(w.at(1))] = w.at(2);
            } else if (word == ".section") {
                read_until("}");
            } else if (word == ".visible" || word == ".weak") {
                at = end;
            } else if (word == ".entry") {
                at = end;
                entry();
            } else if (word == ".extern") {
                const std::string s = read_until(";");
                const size_t space = s.find(".shared");
                if (space == std::string::npos) refuse(line, "unknown declaration " + s);
                dynamic = declared(s.substr(space + 7), line).name;
            } else if (word == ".shared") {
                const Declared d = declared(read_until(";").substr(7), line);
                module_shared[d.name] = d;
            } else {
                refuse(line, "unknown directive " + word);
            }
        }
    }
};

}  // namespace

std::string PtxModule::source_of(const PtxInstruction& i) const {
    const auto inner = files.find(i.file), outer = files.find(i.from_file);
    const bool toolkit = inner != files.end() && inner->second.find("/include/") != std::string::npos;
    const auto file = toolkit && outer != files.end() ? outer : inner;
    if (file == files.end()) return "?";
    return file->second.substr(file->second.rfind('/') + 1) + ":" + std::to_string(file == inner ? i.source : i.from);
}

PtxModule::PtxModule(const std::string& text) { Parser(this, text).parse(); }
