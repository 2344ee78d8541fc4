//! What the source itself declares of NVIDIA's interfaces against NVIDIA's own headers: every structure, number and signature becomes
//! a `static_assert` that the C++ compiler checks, and every function that is looked up must have one. What comes from cudarc's
//! bindings, the Rust compiler checks. The headers come with
//! wheels, which `tests/wheels DIR` fetches; the environment variable PIPESIM_CUDA_WHEELS names DIR.

use crate::elf::Elf;
use crate::support::{PROGRAM, cudnn, finish, root, wheels};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text for the C++ compiler, and the names that it asserts something about.
#[derive(Default)]
struct Assertions {
    text: String,
    names: BTreeSet<String>,
    structures: usize,
    numbers: usize,
    signatures: usize,
}

impl Assertions {
    /// Of headers whose names are between blanks.
    fn of(headers: &str) -> Assertions {
        let mut text: String = headers.split(' ').map(|header| format!("#include <{header}>\n")).collect();
        text += MATCHES;
        Assertions { text, ..Assertions::default() }
    }

    fn holds(&mut self, condition: &str, what: &str) {
        writeln!(self.text, "static_assert({condition}, \"{what}\");").unwrap();
    }

    fn number(&mut self, name: &str, value: &str) {
        let (newer, end) = if NEWER.contains(&name) { ("#if CUDA_VERSION >= 13010\n", "#endif\n") } else { ("", "") };
        self.text += newer;
        self.holds(&format!("(long long)({name}) == ({value})"), &format!("{name} is {value}"));
        self.text += end;
        self.names.insert(name.to_string());
        self.numbers += 1;
    }

    fn signature(&mut self, function: &Signature, aliases: &BTreeMap<String, String>) {
        let Signature { name, arguments, result } = function;
        let arguments: Vec<String> = arguments.iter().map(|argument| c_type(argument, aliases)).collect();
        let own = format!("{}(*)({})", c_type(result, aliases), arguments.join(", "));
        self.holds(&format!("matches(({own}) nullptr, &{name})"), &format!("{name} is {own}"));
        self.names.insert(name.clone());
        self.signatures += 1;
    }
}

/// Whether a function can be called through a pointer of our type: as many arguments, each passed as the other is. A pointer to
/// `void` stands for a handle; a number of the same size and sign, or of the same size only for an enumeration, for a number.
const MATCHES: &str = r"
#include <cstddef>
#include <cstdint>
#include <type_traits>
template <class O, class T> constexpr bool fits() {
    if constexpr (std::is_same_v<O, T>) return true;
    else if constexpr (std::is_pointer_v<O> && std::is_pointer_v<T>) {
        using P = std::remove_pointer_t<O>;
        using Q = std::remove_pointer_t<T>;
        using p = std::remove_cv_t<P>;
        using q = std::remove_cv_t<Q>;
        if constexpr (std::is_const_v<P> != std::is_const_v<Q>) return false;
        else if constexpr (std::is_void_v<p>) return std::is_class_v<q>;
        else return fits<p, q>();
    }
    else if constexpr (std::is_enum_v<T> && std::is_integral_v<O>) return sizeof(O) == sizeof(T);
    else if constexpr (std::is_integral_v<O> && std::is_integral_v<T>)
        return sizeof(O) == sizeof(T) && std::is_signed_v<O> == std::is_signed_v<T>;
    else return false;
}
template <class O, class T, class... P, class... Q> constexpr bool matches(O (*)(P...), T (*)(Q...)) {
    if constexpr (sizeof...(P) != sizeof...(Q)) return false;
    else return fits<O, T>() && (fits<P, Q>() && ...);
}
";

/// A function as the source declares it, in Rust's types.
#[derive(Clone, Debug)]
struct Signature {
    name: String,
    arguments: Vec<String>,
    result: String,
}

/// Numbers that came with CUDA 13.1: only the newer of the driver's headers has them.
const NEWER: [&str; 2] = ["CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG", "CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED"];

/// A resource that asks for hardware queues, since CUDA 13.1: 36 words in eights of bytes, of which word 24 and the two behind it are
/// the device, how many streams work at once, and whether they are shared; the last two words are a pointer to another.
const QUEUES: &str = r#"
#if CUDA_VERSION >= 13010
static_assert(sizeof(CUdevResource) == 36 * 4, "a resource has 36 words");
static_assert(alignof(CUdevResource) == 8, "a resource is aligned to 8 bytes");
static_assert(offsetof(CUdevResource, wqConfig.device) == 24 * 4, "the device is word 24");
static_assert(offsetof(CUdevResource, wqConfig.wqConcurrencyLimit) == 25 * 4, "streams at work are word 25");
static_assert(offsetof(CUdevResource, wqConfig.sharingScope) == 26 * 4, "the scope is word 26");
static_assert(offsetof(CUdevResource, nextResource) == 34 * 4, "the pointer is words 34 and 35");
#endif
"#;

// ---- what is taken from the source's text -----------------------------------------------------------------------------------

/// The text behind `start` up to the bracket that closes it; `start` ends with the opening one.
fn bracketed(text: &str, start: usize, brackets: [char; 2]) -> &str {
    let mut depth = 1;
    for (at, letter) in text[start..].char_indices() {
        depth += usize::from(letter == brackets[0]);
        depth -= usize::from(letter == brackets[1]);
        if depth == 0 {
            return &text[start..start + at];
        }
    }
    panic!("brackets do not match in {}", &text[start..]);
}

/// Parts between separators outside of all brackets, trimmed, but for empty ones.
fn parts(text: &str, separator: char) -> Vec<String> {
    let (mut depth, mut all, mut part) = (0_i32, Vec::new(), String::new());
    for letter in text.chars() {
        depth += i32::from("([{".contains(letter)) - i32::from(")]}".contains(letter));
        if letter == separator && depth == 0 {
            all.push(std::mem::take(&mut part));
        } else {
            part.push(letter);
        }
    }
    all.push(part);
    all.iter().map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
}

/// A type of Rust's as C++ writes it.
fn c_type(rust: &str, aliases: &BTreeMap<String, String>) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(inner, aliases));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const*", c_type(inner, aliases));
    }
    let name = rust.strip_prefix("sys::").unwrap_or(rust);
    let known = match name {
        "c_int" | "i32" => "int",
        "c_uint" | "u32" => "unsigned",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_void" | "()" => "void",
        "std::ffi::c_long" => "long",
        "usize" => "size_t",
        "u64" => "uint64_t",
        "c_ulonglong" => "unsigned long long",
        "i64" => "int64_t",
        "f32" => "float",
        _ => "",
    };
    match aliases.get(name) {
        _ if !known.is_empty() => known.to_string(),
        Some(alias) => c_type(alias, aliases),
        None => name.to_string(),
    }
}

/// One file of the source, without tests.
struct Source {
    file: String,
    /// With comments.
    whole: String,
    /// Without, and without texts: these are apart, each with the place where it stood.
    code: String,
    texts: Vec<(usize, String)>,
}

/// A file's code without comments and without what stands between quotation marks; and the latter.
fn lexed(whole: &str) -> (String, Vec<(usize, String)>) {
    let (mut code, mut texts) = (String::new(), Vec::new());
    let mut letters = whole.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '/' if letters.peek() == Some(&'/') => {
                letters.by_ref().find(|letter| *letter == '\n');
                code.push('\n');
            }
            '"' => {
                let raw = code.ends_with('r') || code.ends_with("r#");
                let mut text = String::new();
                while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                    text.push(letter);
                    if letter == '\\' && !raw {
                        text.extend(letters.next());
                    }
                }
                code.push('"');
                texts.push((code.len(), text));
                code.push('"');
            }
            '\'' => {
                // a letter, or a lifetime
                let ahead: Vec<char> = letters.clone().take(2).collect();
                match ahead[..] {
                    ['\\', _] => {
                        letters.by_ref().take(2).for_each(drop);
                        letters.by_ref().find(|letter| *letter == '\'');
                    }
                    [_, '\''] => letters.by_ref().take(2).for_each(drop),
                    _ => code.push('\''),
                }
            }
            _ => code.push(letter),
        }
    }
    (code, texts)
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let read = |path: PathBuf| {
        let whole = std::fs::read_to_string(&path).unwrap();
        let whole = whole.split("\n#[cfg(test)]\nmod tests").next().unwrap().to_string();
        let (code, texts) = lexed(&whole);
        Source { file: path.strip_prefix(root()).unwrap().display().to_string(), whole, code, texts }
    };
    files.into_iter().map(read).collect()
}

impl Source {
    /// Short names of types: `type Texts = *const *const c_char;`.
    fn aliases(&self) -> BTreeMap<String, String> {
        let lines = self.code.lines().map(|line| line.trim().trim_start_matches("pub "));
        let aliases = lines.filter_map(|line| line.strip_prefix("type ")?.strip_suffix(';')?.split_once(" = "));
        aliases.map(|(name, kind)| (name.to_string(), kind.to_string())).collect()
    }

    /// All functions of libraries that it declares, in either of two ways.
    fn signatures(&self) -> Vec<Signature> {
        let mut all = self.tables();
        all.extend(self.lookups());
        all
    }

    /// `functions! { name(type, ..) -> result; }` or `functions! { name: fn(argument: type, ..) -> result; }`; where a table
    /// names its library's status, its pointers return numbers.
    fn tables(&self) -> Vec<Signature> {
        let mut all = Vec::new();
        for (at, start) in self.code.match_indices("functions! {") {
            if self.code[..at].ends_with("macro_rules! ") {
                continue;
            }
            let mut body = bracketed(&self.code, at + start.len(), ['{', '}']);
            let result = if let Some(brace) = body.find("from sys {") {
                body = bracketed(body, brace + "from sys {".len(), ['{', '}']);
                "u32"
            } else {
                "()"
            };
            for line in parts(body, ';') {
                let line = line.rsplit("]\n").next().unwrap().trim(); // behind attributes
                let (name, rest) = line.split_at(line.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap());
                let open = rest.find('(').unwrap() + 1;
                let within = bracketed(rest, open, ['(', ')']);
                let result = rest[open + within.len()..].split_once("-> ").map_or(result, |(_, result)| result);
                let kind =
                    |argument: &String| argument.rsplit_once(": ").map_or(argument.clone(), |(_, k)| k.to_string());
                let arguments = parts(within, ',').iter().map(kind).collect();
                all.push(Signature { name: name.to_string(), arguments, result: result.trim().to_string() });
            }
        }
        all
    }

    /// `let f: unsafe extern "C" fn(type, ..) -> result = function(library, "name", ..)`, or of a type with a short name; and
    /// fields of such types, or of options of them, whose function is looked up in the same file as `field: symbol(library,
    /// "name\0")` or `(field, ..) = (symbol(library, "name\0"), ..)`.
    fn lookups(&self) -> Vec<Signature> {
        let mut all = Vec::new();
        let names = self.texts.iter().map(|(at, text)| (*at, text.trim_end_matches("\\0")));
        for (at, name) in names.filter(|(_, name)| is_function(name)) {
            let before = &self.code[..at];
            let Some(opening) = before.rfind('(') else { continue };
            let call = before[..opening].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            let statement = &before[before.rfind("let ").unwrap_or(0)..];
            let kind = match call {
                "function" => statement.rsplit_once(" =").map(|(left, _)| left.split_once(": ").unwrap().1.to_string()),
                "symbol" => self.field(name),
                _ => None, // in a list of names, or looked up by the table
            };
            let Some(kind) = kind else { continue };
            let kind = self.aliases().get(kind.trim()).cloned().unwrap_or(kind);
            let open = kind.find("fn(").unwrap_or_else(|| panic!("{}: {name} is of type {kind}", self.file)) + 3;
            let within = bracketed(&kind, open, ['(', ')']);
            let result = kind[open + within.len()..].split_once("-> ").map_or("()", |(_, result)| result);
            let result = result.trim_end_matches('>').trim();
            all.push(Signature { name: name.to_string(), arguments: parts(within, ','), result: result.to_string() });
        }
        all
    }

    /// The type of the field that a function is kept in: the last word of its name, `cuFuncLoad` in `load`.
    fn field(&self, name: &str) -> Option<String> {
        let kinds = self.code.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(": "));
        let mut kinds = kinds.filter(|(field, kind)| {
            let field: String = field.rsplit(' ').next().unwrap().chars().filter(|letter| *letter != '_').collect();
            let (name, of_text) = (name.to_lowercase(), field == "text" && name.ends_with("String"));
            kind.contains("extern \"\" fn(") && (of_text || name.trim_end_matches('a').ends_with(&field))
        });
        kinds.next().map(|(_, kind)| kind.to_string())
    }

    /// Constants whose documentation begins with a name of NVIDIA's, or whose own name is one: that name, and the value as text.
    fn constants(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let mut documentation = "";
        for line in self.whole.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                documentation = if documentation.is_empty() { text.trim() } else { documentation };
                continue;
            }
            let constant = ["pub(super) ", "pub ", ""].iter().find_map(|start| line.strip_prefix(start));
            if let Some((name, rest)) = constant.and_then(|line| line.strip_prefix("const ")?.split_once(": ")) {
                let named = documentation.strip_prefix('`').and_then(|text| text.split('`').next());
                let named = [Some(name), named].into_iter().flatten().find(|name| is_nvidia(name));
                let value = rest.split_once(" = ").map(|(_, value)| value.trim_end_matches(';'));
                if let (Some(named), Some(value)) = (named, value) {
                    all.push((named.to_string(), value.to_string()));
                }
            }
            documentation = "";
        }
        all
    }

    /// Structures laid out as C does, with the types of their members.
    fn structures(&self) -> Vec<(String, Vec<(String, String)>)> {
        let mut all = Vec::new();
        for (at, _) in self.code.match_indices("#[repr(C)]") {
            let rest = &self.code[at..];
            let start = rest.find("struct ").unwrap() + "struct ".len();
            let brace = rest.find('{').unwrap();
            let members = parts(bracketed(rest, brace + 1, ['{', '}']), ',');
            let member =
                |text: &String| text.trim_start_matches("pub ").split_once(": ").map(|(n, k)| (n.into(), k.into()));
            all.push((rest[start..brace].trim().to_string(), members.iter().filter_map(member).collect()));
        }
        all
    }

    /// All functions of NVIDIA's that it names in texts.
    fn names(&self) -> BTreeSet<String> {
        let texts = self.texts.iter().map(|(_, text)| text.trim_end_matches("\\0").to_string());
        texts.filter(|name| is_function(name)).collect()
    }
}

fn follows(name: &str, prefix: &str, next: impl Fn(char) -> bool) -> bool {
    name.strip_prefix(prefix).and_then(|rest| rest.chars().next()).is_some_and(next)
}

/// Whether a word is the name of a function of NVIDIA's.
fn is_function(name: &str) -> bool {
    let is_word = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let starts = ["cu", "cublasLt", "cudnn", "nccl", "nvrtc", "nvml", "nvtx"];
    let by_case = starts.iter().any(|prefix| follows(name, prefix, |letter| letter.is_ascii_uppercase()));
    is_word && (by_case || name.starts_with("nvshmem_") || name.starts_with("nvshmemx_")) && !OURS.contains(&name)
}

/// Whether a word is a name of NVIDIA's: a function, a type, a number.
fn is_nvidia(name: &str) -> bool {
    let types =
        follows(name, "CU", |letter| letter.is_ascii_lowercase()) || follows(name, "cuda", |l| l.is_uppercase());
    let rest = ["CU_", "CUDA_", "CUBLAS", "CUDNN_", "NVRTC_", "NVML_", "NVSHMEM_", "NVSHMEMX_", "cublas", "cuuint"];
    let is_number = rest.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    (is_function(name) || types || is_number) && !name.contains("__bindgen") && !OURS.contains(&name)
}

/// Words that only look like such names.
const OURS: [&str; 5] = ["nvshmem_sys", "cublaslt", "CUBLASLT", "cuBLASLt", "cuDNN"];

// ---- both together ------------------------------------------------------------------------------------------------------------

/// Whether a name is of cuDNN's header, which only `PIPESIM_CUDNN` has.
fn is_cudnns(name: &str) -> bool {
    name.starts_with("cudnn") || name.starts_with("CUDNN_")
}

/// The library that a name belongs to: the driver's header is compiled twice, in two versions.
fn is_drivers(name: &str) -> bool {
    let theirs = ["CUBLAS", "CUDA_R_", "CUDNN_", "cublas", "cuda", "cudnn", "nccl", "nv", "NV"];
    !theirs.iter().any(|prefix| name.starts_with(prefix))
}

/// What is asserted of the driver, of the libraries, and of cuDNN.
fn assertions() -> [Assertions; 3] {
    let libraries = "cublasLt.h nccl.h nvrtc.h nvml.h nvtx3/nvToolsExt.h nvshmem_host.h";
    let mut all = [Assertions::of("cuda.h"), Assertions::of(&format!("cuda.h {libraries}")), Assertions::of("cudnn.h")];
    let place = |name: &str| if is_cudnns(name) { 2 } else { usize::from(!is_drivers(name)) };
    all[0].text += QUEUES;
    let mut seen = BTreeSet::new();
    for source in sources() {
        let aliases = source.aliases();
        for function in source.signatures() {
            // several places may declare one function, each in its own types
            if seen.insert(format!("{function:?}")) {
                all[place(&function.name)].signature(&function, &aliases);
            }
        }
        for (name, value) in source.constants() {
            let value = if value.starts_with("sys::") || value.starts_with("cudarc::") { continue } else { value };
            all[place(&name)].number(&name, &value);
        }
        for (name, members) in source.structures() {
            own_structure(&mut all[1], &name, &members, &aliases);
        }
    }
    all
}

/// A structure of our own beside the library's: the same text compiled as C++, member by member. NVSHMEM's are version 1.
fn own_structure(to: &mut Assertions, name: &str, members: &[(String, String)], aliases: &BTreeMap<String, String>) {
    let theirs = name.strip_suffix("_t").map_or(name.to_string(), |stem| format!("{stem}_v1"));
    let mut body = String::new();
    for (member, kind) in members {
        let (kind, count) = match kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')?.split_once("; ")) {
            Some((kind, count)) => (kind, format!("[{count}]")),
            None => (kind.as_str(), String::new()),
        };
        let kind = if kind == "u8" { "unsigned char".to_string() } else { c_type(kind, aliases) };
        write!(body, "{kind} {member}{count}; ").unwrap();
    }
    writeln!(to.text, "namespace own {{ struct {name} {{ {body}}}; }}").unwrap();
    for what in ["sizeof", "alignof"] {
        to.holds(&format!("{what}(own::{name}) == {what}({theirs})"), &format!("{what} of {theirs}"));
    }
    for (member, _) in members {
        to.holds(
            &format!("offsetof(own::{name}, {member}) == offsetof({theirs}, {member})"),
            &format!("{theirs}.{member} is elsewhere"),
        );
        let sizes = format!("sizeof(own::{name}::{member}) == sizeof({theirs}::{member})");
        to.holds(&sizes, &format!("{theirs}.{member} has another size"));
    }
    to.names.insert(name.to_string());
    to.structures += 1;
}

/// What the C++ compiler says of a text, with these folders of headers.
fn compile(text: &str, folders: &[PathBuf]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("assertions.cpp");
    std::fs::write(&file, text).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    compiler.args(["-std=c++17", "-fsyntax-only", "-w", "-fno-show-column"]).arg(&file);
    for folder in folders {
        compiler.arg("-isystem").arg(folder);
    }
    let output = compiler.output().expect("a C++ compiler: g++, or the one named in CXX");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The folders of headers of each compilation of [`assertions`]: the driver's twice.
fn compilations(wheels: &Path) -> [(usize, Vec<PathBuf>); 3] {
    let own = ["cu13/include", "cu13/include/cccl", "nccl/include", "nvshmem/include"];
    let folders = own.map(|folder| wheels.join("nvidia").join(folder)).to_vec();
    assert!(
        folders[0].join("cuda.h").is_file(),
        "expected NVIDIA's headers in {}, found no cuda.h; run tests/wheels on the folder that PIPESIM_CUDA_WHEELS names",
        folders[0].display()
    );
    [(0, folders.clone()), (0, vec![wheels.join("newest/nvidia/cu13/include")]), (1, folders)]
}

#[test]
fn structures_numbers_and_signatures_are_those_of_nvidias_headers() {
    let Some(wheels) = wheels() else { return };
    let assertions = assertions();
    for (which, folders) in compilations(&wheels) {
        compile(&assertions[which].text, &folders).unwrap_or_else(|said| panic!("{folders:?}:\n{said}"));
    }
    let sum = |of: fn(&Assertions) -> usize| assertions.iter().map(of).sum::<usize>();
    let all = assertions.iter().map(|part| part.text.matches("static_assert").count()).sum::<usize>();
    let (structures, numbers, signatures) = (sum(|a| a.structures), sum(|a| a.numbers), sum(|a| a.signatures));
    println!("{structures} types, {numbers} numbers and {signatures} signatures in {all} assertions hold");
    assert!(structures >= 4 && numbers >= 60 && signatures >= 110, "the source declares more than that");
}

#[test]
fn numbers_and_signatures_of_cudnn_are_those_of_its_header() {
    let (Some(folder), Some(wheels)) = (cudnn(), wheels()) else { return };
    let [_, _, ours] = assertions();
    let folders = [folder.join("nvidia/cudnn/include"), wheels.join("nvidia/cu13/include")];
    compile(&ours.text, &folders).unwrap_or_else(|said| panic!("{folders:?}:\n{said}"));
    println!("{} numbers and {} signatures of cuDNN hold", ours.numbers, ours.signatures);
    assert!(ours.numbers >= 60 && ours.signatures == 12);
}

#[test]
fn every_function_that_is_looked_up_is_asserted() {
    let asserted: BTreeSet<String> = assertions().into_iter().flat_map(|part| part.names).collect();
    let mut without = Vec::new();
    for source in sources() {
        without.extend(source.names().difference(&asserted).map(|name| format!("{name} in {}", source.file)));
    }
    assert!(without.is_empty(), "no assertion about {without:#?}: add them to the tables of {}", file!());
}

/// The assertions bite: a number and the types of a function that are not the headers' do not compile.
#[test]
fn wrong_declarations_do_not_compile() {
    let Some(wheels) = wheels() else { return };
    let mut wrong = Assertions::of("cuda.h");
    wrong.number("CUDA_ERROR_NO_DEVICE", "101");
    let signature = |name: &str, arguments: &[&str]| Signature {
        name: name.to_string(),
        arguments: arguments.iter().map(|argument| argument.to_string()).collect(),
        result: "u32".to_string(),
    };
    let none = BTreeMap::new();
    for function in [
        signature("cuInit", &["c_int"]),
        signature("cuMemAlloc_v2", &["*mut sys::CUdeviceptr"]),
        signature("cuCtxSetCurrent", &["*mut *mut c_void"]),
        signature("cuMemcpyHtoDAsync_v2", &["sys::CUdeviceptr", "*mut c_void", "usize", "sys::CUstream"]),
        signature("cuDeviceGet", &["*mut u64", "c_int"]),
    ] {
        wrong.signature(&function, &none);
    }
    let said = compile(&wrong.text, &compilations(&wheels)[0].1).unwrap_err();
    let refused = said.lines().filter(|line| line.contains("error: static assertion failed")).count();
    assert_eq!(refused, 1 + 5, "{said}");
}

/// Functions of the driver that are newer than the oldest that doctor accepts, by the header that names each one's version; those
/// that may be missing are left out.
#[test]
fn every_function_of_the_driver_is_there_since_12_8() {
    let Some(wheels) = wheels() else { return };
    let newer: Vec<_> = since(&wheels).into_iter().filter(|(_, version)| *version > 12_080).collect();
    assert!(newer.is_empty(), "newer than CUDA 12.8: {newer:?}");
}

/// The driver's functions that the table needs, with the CUDA version since which each is there: 12080 is 12.8.
fn since(wheels: &Path) -> BTreeMap<String, u32> {
    let header = wheels.join("newest/nvidia/cu13/include/cudaTypedefs.h");
    let header = std::fs::read_to_string(&header).unwrap_or_else(|error| panic!("{}: {error}", header.display()));
    let mut versions: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for word in header.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
        let Some((name, version)) = word.strip_prefix("PFN_").and_then(|word| word.rsplit_once("_v")) else { continue };
        versions.entry(name.to_string()).or_default().extend(version.parse::<u32>());
    }
    let mut all = BTreeMap::new();
    let table = sources().into_iter().find(|source| source.file == "src/gpu/api/driver.rs").unwrap().tables();
    assert!(table.len() > 40);
    for Signature { name, .. } in table {
        let (stem, number) = name.rsplit_once("_v").map_or((name.as_str(), 1), |(stem, n)| (stem, n.parse().unwrap()));
        let mut versions = versions.get(stem).cloned().unwrap_or_else(|| panic!("no version of {name}"));
        versions.sort_unstable();
        versions.dedup();
        // the first of a function that was there from the start under its second name only is its second
        let version = if number == 1 { versions[0] } else { *versions.last().unwrap() };
        all.insert(name, version);
    }
    all
}

/// NVIDIA's own driver, that of Debian, on a machine without a GPU. It is older than doctor accepts (555, CUDA 12.5): what it lacks
/// is what came later by NVIDIA's header, all else is found under the name that the source gives it; the absence of a GPU and the
/// driver's age are said, each with what to do.
#[test]
fn nvidias_own_driver_resolves_all_that_its_version_has_and_no_device_is_said() {
    let Some(wheels) = wheels() else { return };
    let folder = wheels.join("driver");
    let library = folder.join("libcuda.so.1");
    let Ok(file) = std::fs::read(&library) else {
        println!("not run: no {} (tests/wheels fetches it where there is apt-get)", library.display());
        return;
    };
    let symbols = Elf::of(&file).symbols(11);
    let defined: BTreeSet<&str> = symbols.values().filter(|(_, is_here)| *is_here).map(|(name, _)| *name).collect();
    let since = since(&wheels);
    let declared: BTreeSet<String> =
        sources().iter().flat_map(Source::signatures).map(|function| function.name).collect();
    let declared: Vec<_> = declared.iter().filter(|name| name.starts_with("cu") && is_drivers(name)).collect();
    assert!(declared.len() > 50, "{declared:?}");
    let lacking: Vec<_> =
        declared.iter().filter(|name| !defined.contains(name.as_str())).map(|name| name.as_str()).collect();
    let newer: Vec<_> = since.iter().filter(|(_, version)| **version > 12_050).map(|(name, _)| name.as_str()).collect();
    assert_eq!(lacking, newer, "of {} functions", declared.len());
    println!("{} of {} functions resolve; {lacking:?} are newer", declared.len() - lacking.len(), declared.len());

    let pipesim = |arguments: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments.split(' ')).env("LD_LIBRARY_PATH", &folder);
        for variable in ["PIPESIM_CUDA_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"] {
            command.env_remove(variable);
        }
        finish(&mut command)
    };
    let (code, json, told) = pipesim("doctor --format json --need cuda");
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("expected CUDA 12.8 or newer; install a newer NVIDIA driver, 570 or newer"), "{told}");
    let row = |name: &str| json["probes"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    let (driver, devices) = (row("driver"), row("devices"));
    assert_eq!((driver["status"].as_str(), devices["status"].as_str()), (Some("broken"), Some("unknown")), "{json:#}");
    assert!(driver["found"].as_str().unwrap().starts_with("CUDA 12.5, "), "{driver}");
    assert_eq!(devices["found"], "not probed: the driver is too old");
    assert!(devices["fix"].as_str().unwrap().contains("570 or newer"), "{devices}");

    let (code, _, told) = pipesim("run --device cuda --stages 1 --micro 1 --schedule 1f1b --output unused/");
    assert_eq!(code, Some(5), "{told}");
    assert!(newer.iter().all(|name| told.contains(name)) && told.contains("--device cpu"), "{told}");
}
