// A stand-in for NVRTC (libnvrtc.so.13). The "compiled" program is its text behind a mark that the stand-in for the driver knows:
// the code that runs is the same text compiled by the C++ compiler. What is checked: options, includes, balanced brackets.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Result : int { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string text, name, log, image;
    std::vector<std::string> headers, header_texts;
    bool compiled = false, virtual_architecture = false;
};

// The text with comments, strings and character literals blanked, so that brackets can be counted.
std::string blanked(const std::string& text) {
    std::string out = text;
    for (size_t at = 0; at < out.size(); ++at) {
        size_t end = at;
        if (!out.compare(at, 2, "//")) end = out.find('\n', at);
        else if (!out.compare(at, 2, "/*")) end = out.find("*/", at + 2) == std::string::npos ? std::string::npos : out.find("*/", at + 2) + 2;
        else if (out[at] == '"' || (out[at] == '\'' && !(at && isalnum((unsigned char)out[at - 1])))) {
            for (end = at + 1; end < out.size() && out[end] != out[at]; ++end) end += out[end] == '\\';
            ++end;
        }
        if (end == at) continue;
        end = std::min(end, out.size());
        for (; at < end; ++at)
            if (out[at] != '\n') out[at] = ' ';
        --at;
    }
    return out;
}

std::string check_brackets(const Program& program) {
    std::vector<std::pair<char, int>> open;
    int line = 1;
    for (char c : blanked(program.text)) {
        line += c == '\n';
        if (strchr("([{", c) && c) open.emplace_back(c == '(' ? ')' : c == '[' ? ']' : '}', line);
        if (!strchr(")]}", c) || !c) continue;
        if (open.empty() || open.back().first != c) return program.name + "(" + std::to_string(line) + "): error: unexpected \"" + c + "\"\n";
        open.pop_back();
    }
    if (open.empty()) return "";
    return program.name + "(" + std::to_string(open.back().second) + "): error: expected a \"" + open.back().first + "\"\n";
}

std::string check_includes(const Program& program) {
    size_t at = 0;
    for (int line = 1; at < program.text.size(); ++line) {
        size_t end = std::min(program.text.find('\n', at), program.text.size());
        std::string row = program.text.substr(at, end - at);
        at = end + 1;
        size_t begin = row.find_first_not_of(" \t");
        if (begin == std::string::npos || row.compare(begin, 8, "#include")) continue;
        size_t from = row.find_first_of("\"<", begin), to = row.find_first_of("\">", from + 1);
        std::string header = from == std::string::npos || to == std::string::npos ? "" : row.substr(from + 1, to - from - 1);
        bool known = false;
        for (auto& name : program.headers) known |= name == header;
        if (!known) return program.name + "(" + std::to_string(line) + "): catastrophic error: cannot open source file \"" + header + "\"\n";
    }
    return "";
}

int copy_out(const std::string& text, char* out) {
    memcpy(out, text.data(), text.size());
    out[text.size()] = 0;
    return SUCCESS;
}

}  // namespace

// A version that does not exist: a cache of compiled kernels whose key holds the version never gives a device what was made here.
API int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 99, SUCCESS; }
API int nvrtcGetNumSupportedArchs(int* count) { return *count = 3, SUCCESS; }
API int nvrtcGetSupportedArchs(int* list) { return list[0] = 75, list[1] = 80, list[2] = 90, SUCCESS; }

API const char* nvrtcGetErrorString(int result) {
    switch (result) {
        case SUCCESS: return "NVRTC_SUCCESS";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        default: return "NVRTC_ERROR unknown";
    }
}

API int nvrtcCreateProgram(Program** out, const char* text, const char* name, int headers, const char* const* texts,
                           const char* const* names) {
    if (!out || !text || headers < 0) return INVALID_INPUT;
    *out = new Program;
    (*out)->text = text;
    (*out)->name = name ? name : "default_program";
    for (int each = 0; each < headers; ++each) (*out)->headers.push_back(names[each]), (*out)->header_texts.push_back(texts[each]);
    return SUCCESS;
}

API int nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

API int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (!program) return INVALID_PROGRAM;
    std::string architecture = "compute_75";
    bool brain_float = program->text.find("#define PIPESIM_BF16\n") != std::string::npos;
    for (int each = 0; each < count; ++each) {
        std::string option = options[each];
        if (option.empty() || option[0] != '-') return program->log = "nvrtc: error: unrecognized option " + option + " found\n", INVALID_OPTION;
        if (option.find("arch") != std::string::npos && option.find("=") != std::string::npos) architecture = option.substr(option.find('=') + 1);
        if (option.find("PIPESIM_BF16") != std::string::npos) brain_float = true;
    }
    program->virtual_architecture = !architecture.compare(0, 8, "compute_");
    if (!program->virtual_architecture && architecture.compare(0, 3, "sm_")) return program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n", INVALID_OPTION;
    program->log = check_includes(*program);
    if (program->log.empty()) program->log = check_brackets(*program);
    if (!program->log.empty()) {
        program->log += "1 error detected in the compilation of \"" + program->name + "\".\n";
        return COMPILATION;
    }
    program->image = "EMULATED CUBIN " + architecture + (brain_float ? " bf16\n" : " f32\n") + program->text;
    for (auto& text : program->header_texts) program->image += "\n" + text;  // a kernel may be declared in a header
    program->compiled = true;
    return SUCCESS;
}

// A virtual architecture gives PTX only, as with the real library.
API int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    if (!program || !program->compiled) return INVALID_PROGRAM;
    *bytes = program->virtual_architecture ? 0 : program->image.size() + 1;
    return SUCCESS;
}
API int nvrtcGetCUBIN(Program* program, char* out) { return !program || !program->compiled || program->virtual_architecture ? (int)INVALID_PROGRAM : copy_out(program->image, out); }
API int nvrtcGetPTXSize(Program* program, size_t* bytes) {
    if (!program || !program->compiled) return INVALID_PROGRAM;
    *bytes = program->image.size() + 1;
    return SUCCESS;
}
API int nvrtcGetPTX(Program* program, char* out) { return !program || !program->compiled ? (int)INVALID_PROGRAM : copy_out(program->image, out); }
API int nvrtcGetProgramLogSize(Program* program, size_t* bytes) { return program ? (*bytes = program->log.size() + 1, (int)SUCCESS) : (int)INVALID_PROGRAM; }
API int nvrtcGetProgramLog(Program* program, char* out) { return program ? copy_out(program->log, out) : (int)INVALID_PROGRAM; }
