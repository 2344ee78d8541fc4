//! Commands that the shell itself runs, and programs that run a shell.

use super::expand::escapes;
use super::scheduler::header;
use super::state::{Shell, Status, Stop, Variable};
use super::text::{is_name, names, plain};

/// Programs that run another one, whose command follows their options.
pub(super) const LAUNCHERS: &str = "srun mpirun mpiexec mpiexec.hydra prun jsrun flux numactl nsys ncu env timeout singularity apptainer \
    docker podman enroot nohup setsid stdbuf sudo exec command time nice taskset ssh pdsh xargs sbatch \
    rocprof rocprofv3 strace perf unbuffer script uv poetry conda shifter ray builtin bsub qsub catchsegv \
    aprun kubectl";

/// Whether a word is in a list of words.
pub(super) fn is_one_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

/// The last part of a program's path.
pub(super) fn program(word: &str) -> String {
    plain(word).rsplit('/').next().unwrap_or_default().to_string()
}

/// Commands that change nothing that is read.
const SILENT: &str = ": true set shopt trap ulimit umask wait cd pushd popd module ml sleep mkdir rm chmod touch mv unalias alias \
    hash type export";

fn is_shell(word: &str) -> bool {
    is_one_of("bash sh zsh dash", &program(word))
}

fn is_script(word: &str) -> bool {
    let name = program(word);
    [".sh", ".slurm", ".sbatch", ".bash", ".job"].iter().any(|end| name.ends_with(end) && name.len() > end.len())
}

impl Shell<'_> {
    /// Runs a command after its expansion.
    pub(super) fn command(&mut self, words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let name = plain(&words[0]);
        let arguments = &words[1..];
        if let Some(body) = self.functions.get(&name).cloned() {
            return self.with(before, |shell| shell.call(&body, arguments.to_vec()));
        }
        let first = arguments.first().map(|word| plain(word)).unwrap_or_default();
        let number = first.parse::<usize>().unwrap_or(1).max(1);
        match &*name {
            name if is_one_of(SILENT, name) => {
                if name == "set" {
                    self.set_arguments(arguments);
                }
                if is_one_of("pushd popd module ml type", name) {
                    self.output_unknown = true;
                }
                Ok(Status::default())
            }
            "false" => Ok(Status::of(false, String::new())),
            "exit" => Err(Stop::Exit),
            "return" => Err(Stop::Return(
                first.parse().is_ok_and(|code: i64| code != 0) || first.is_empty() && self.status.failed,
            )),
            "break" => Err(Stop::Break(number)),
            "continue" => Err(Stop::Continue(number)),
            "shift" => {
                let count = number.min(self.arguments.len());
                self.arguments.drain(..count);
                Ok(Status::default())
            }
            "[" | "test" => {
                let closing = usize::from(name == "[");
                self.test(&arguments[..arguments.len().saturating_sub(closing)])
            }
            "let" => {
                let mut status = Status::default();
                for word in arguments {
                    status = self.compute(word)?;
                }
                Ok(status)
            }
            "eval" => {
                let text = arguments.join(" ");
                self.with(before, |shell| shell.run_text(&text, 0).map(|()| shell.status.clone()))
            }
            "source" | "." => self.source(arguments, before),
            "unset" => {
                for word in arguments {
                    let name = self.resolve(&plain(word));
                    self.variables.remove(&name);
                    self.assigned.insert(name);
                }
                Ok(Status::default())
            }
            "read" | "mapfile" | "readarray" => self.read(&name, arguments, before),
            "getopts" => Ok(Status::of(false, String::new())),
            "exec" | "command" | "builtin" | "nohup" | "time" if !arguments.is_empty() && !first.starts_with('-') => {
                let status = self.command(arguments, before)?;
                if name == "exec" { Err(Stop::Exit) } else { Ok(status) }
            }
            _ => match self.text_tool(&name, arguments)? {
                Some(text) => {
                    self.charge(text.len())?;
                    self.output.push_str(&text);
                    Ok(Status::default())
                }
                None => self.program(words, before),
            },
        }
    }

    /// Tools whose output follows from their arguments.
    fn text_tool(&mut self, name: &str, arguments: &[String]) -> Result<Option<String>, Stop> {
        let words: Vec<String> = arguments.iter().filter(|word| !plain(word).starts_with('-')).cloned().collect();
        let last = words.last().map(|word| plain(word)).unwrap_or_default();
        let marks = names(&words.concat());
        Ok(Some(match name {
            "echo" => {
                let options =
                    arguments.iter().take_while(|word| matches!(&*plain(word), "-n" | "-e" | "-ne" | "-en" | "-E"));
                let options: Vec<String> = options.map(|word| plain(word)).collect();
                let text = arguments[options.len()..].join(" ");
                let text = if options.iter().any(|option| option.contains('e')) { escapes(&text) } else { text };
                if options.iter().any(|option| option.contains('n')) { text } else { text + "\n" }
            }
            "printf" if arguments.first().is_some_and(|word| plain(word) == "-v") => {
                let text = self.format(arguments.get(2..).unwrap_or_default())?;
                let name = arguments.get(1).map(|word| plain(word)).unwrap_or_default();
                self.set_text(&name, text);
                String::new()
            }
            "printf" => self.format(arguments)?,
            "cat" | "tee" if words.is_empty() || name == "tee" => match self.input.clone() {
                Some(text) => {
                    if name == "tee" {
                        self.written.insert(last, text.clone());
                    }
                    text
                }
                None => return Ok(None),
            },
            "cat" => {
                let files: Option<Vec<String>> = words.iter().map(|path| self.read_file(path)).collect();
                match files {
                    Some(files) => files.concat(),
                    None => return Ok(None),
                }
            }
            "cp" if words.len() == 2 => {
                if let Some(text) = self.read_file(&words[0]) {
                    self.written.insert(last, text);
                }
                String::new()
            }
            "basename" if !words.is_empty() => {
                let base = plain(&words[0]);
                let base = base.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                let end = words.get(1).map(|word| plain(word)).unwrap_or_default();
                format!("{}{marks}\n", base.strip_suffix(&*end).filter(|rest| !rest.is_empty()).unwrap_or(base))
            }
            "dirname" if !words.is_empty() => {
                let path = plain(&words[0]);
                let folder = match path.trim_end_matches('/').rsplit_once('/') {
                    Some(("", _)) => "/",
                    Some((folder, _)) => folder,
                    None if names(&words[0]).is_empty() => ".",
                    None => "",
                };
                format!("{folder}{marks}\n")
            }
            "readlink" | "realpath" if !words.is_empty() => format!("{last}{marks}\n"),
            "pwd" => self.parameter_value("PWD") + "\n",
            "expr" => {
                let number = self.calculate(&arguments.join(" "))?;
                match number.value {
                    Some(value) => format!("{value}{}\n", number.names),
                    None => return Ok(None),
                }
            }
            "seq" if !words.is_empty() && words.len() <= 3 => {
                let numbers: Option<Vec<i64>> = words.iter().map(|word| plain(word).parse().ok()).collect();
                let Some(numbers) = numbers else { return Ok(None) };
                let (from, by, to) = match numbers[..] {
                    [to] => (1, 1, to),
                    [from, to] => (from, 1, to),
                    [from, by, to] => (from, by.max(1), to),
                    _ => return Ok(None),
                };
                let step = usize::try_from(by).unwrap_or(1);
                (from..=to).step_by(step).take(1000).map(|number| format!("{number}\n")).collect()
            }
            _ => return self.filter(name, arguments),
        }))
    }

    /// Tools that change what they read.
    fn filter(&mut self, name: &str, arguments: &[String]) -> Result<Option<String>, Stop> {
        let Some(input) = self.input.clone() else { return Ok(None) };
        let words: Vec<String> = arguments.iter().map(|word| plain(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let marks = names(&input);
        Ok(Some(match (name, &words[..]) {
            ("tr", ["-d", set]) => {
                let set = escapes(set);
                input.chars().filter(|c| is_name(*c) || !set.contains(*c)).collect()
            }
            ("tr", [from, to]) if !from.contains(['[', '-']) && escapes(from).len() == escapes(to).len() => {
                let (from, to) = (escapes(from), escapes(to));
                let swap =
                    |c: char| from.chars().position(|one| one == c).and_then(|at| to.chars().nth(at)).unwrap_or(c);
                input.chars().map(swap).collect()
            }
            ("wc", ["-w"]) => format!("{}{marks}\n", plain(&input).split_whitespace().count()),
            ("wc", ["-l"]) => format!("{}{marks}\n", plain(&input).matches('\n').count()),
            ("head", ["-n", "1"] | ["-n1"] | ["-1"]) => input.lines().next().unwrap_or_default().to_string() + "\n",
            ("xargs", []) => plain(&input).split_whitespace().collect::<Vec<_>>().join(" ") + &marks + "\n",
            ("cut", [d, f] | [f, d]) if d.starts_with("-d") && f.starts_with("-f") && d.chars().count() == 3 => {
                let Ok(field) = f[2..].parse::<usize>() else { return Ok(None) };
                let separator = d.chars().nth(2).unwrap_or('\t');
                let part = |row: &str| {
                    let parts: Vec<&str> = row.split(separator).collect();
                    if parts.len() == 1 { row } else { parts.get(field.wrapping_sub(1)).unwrap_or(&"") }.to_string()
                        + "\n"
                };
                input.lines().map(part).collect()
            }
            _ => return Ok(None),
        }))
    }

    /// A program: it runs a shell, or is noted.
    fn program(&mut self, words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let name = program(&words[0]);
        let launcher = is_one_of(LAUNCHERS, &name);
        let start = words.iter().position(|word| is_shell(word) || is_script(word));
        if let Some(at) = start.filter(|at| *at == 0 || launcher) {
            if at > 0 {
                self.external(&words[..at], before);
            }
            let (within, words) = words.split_at(at);
            return if is_shell(&words[0]) {
                self.shell(within, &words[1..], before)
            } else {
                self.script(within, words, before)
            };
        }
        if name == "sbatch" && self.input.is_some() {
            return self.shell(&[], &[], before);
        }
        self.external(words, before);
        Ok(Status::default())
    }

    /// `bash [options] [-c text | file] [arguments]`, behind launchers.
    fn shell(&mut self, within: &[String], words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let mut at = 0;
        while let Some(word) = words.get(at).map(|word| plain(word)) {
            if word == "-c" || word.starts_with('-') && !word.starts_with("--") && word.ends_with('c') {
                let text = words.get(at + 1).cloned().unwrap_or_default();
                let arguments = words.get(at + 3..).unwrap_or_default().to_vec();
                return self.new_shell(within, before, arguments, |shell| shell.run_text(&text, 0));
            }
            if !word.starts_with(['-', '+']) {
                return self.script(within, &words[at..], before);
            }
            at += if word == "-o" || word == "-O" { 2 } else { 1 };
        }
        let Some(text) = self.input.clone() else { return Ok(Status::default()) };
        let arguments = words.get(at..).unwrap_or_default().to_vec();
        let first = text.chars().next().map_or(0, |mark| mark as usize);
        self.new_shell(within, before, arguments, |shell| {
            shell.read_header(&plain(&text));
            shell.run_text(&text, first)
        })
    }

    fn script(&mut self, within: &[String], words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let path = plain(&words[0]);
        let Some(text) = self.read_file(&path) else {
            self.absent.push(path);
            self.external(words, before);
            return Ok(Status::default());
        };
        self.new_shell(within, before, words[1..].to_vec(), |shell| {
            shell.read_header(&plain(&text));
            shell.run_file(&path, &text)
        })
    }

    fn new_shell(
        &mut self,
        within: &[String],
        before: &[(String, String)],
        arguments: Vec<String>,
        inner: impl FnOnce(&mut Self) -> Result<(), Stop>,
    ) -> Result<Status, Stop> {
        let count = self.within.len();
        let more: Vec<_> = within.iter().map(|word| self.finished(word)).collect();
        self.within.extend(more);
        let result = self.child(true, |shell| {
            for (name, text) in before {
                shell.set_text(name, text.clone());
                shell.export(name);
            }
            shell.arguments = arguments;
            inner(shell)
        });
        self.within.truncate(count);
        result.map(|()| self.status.clone())
    }

    /// Sets what a scheduler derives from the header of a script.
    pub(super) fn read_header(&mut self, text: &str) {
        for (name, value) in header(text) {
            if !self.variables.contains_key(name) {
                self.variables.insert(name.to_string(), Variable::exported(value));
            }
        }
    }

    fn source(&mut self, words: &[String], before: &[(String, String)]) -> Result<Status, Stop> {
        let Some(path) = words.first().map(|word| plain(word)) else { return Ok(Status::default()) };
        let Some(text) = self.read_file(&path) else {
            self.absent.push(path);
            return Ok(Status::default());
        };
        let arguments = (words.len() > 1).then(|| std::mem::replace(&mut self.arguments, words[1..].to_vec()));
        let result = self.with(before, |shell| shell.run_file(&path, &text).map(|()| Status::default()));
        if let Some(arguments) = arguments {
            self.arguments = arguments;
        }
        result
    }

    /// Runs something with variables that are set for it alone.
    fn with(
        &mut self,
        before: &[(String, String)],
        inner: impl FnOnce(&mut Self) -> Result<Status, Stop>,
    ) -> Result<Status, Stop> {
        let mut saved = Vec::new();
        for (name, text) in before {
            saved.push((name, self.variables.get(name).cloned()));
            self.set_text(name, text.clone());
            self.export(name);
        }
        let result = inner(self);
        for (name, variable) in saved {
            self.restore(name, variable);
        }
        result
    }

    fn call(&mut self, body: &super::syntax::Node, arguments: Vec<String>) -> Result<Status, Stop> {
        let outer = std::mem::replace(&mut self.arguments, arguments);
        self.hidden.push(Vec::new());
        let result = self.run(body);
        for (name, variable) in self.hidden.pop().unwrap_or_default().into_iter().rev() {
            self.restore(&name, variable);
        }
        self.arguments = outer;
        match result {
            Err(Stop::Return(failed)) => Ok(Status { failed, ..Status::default() }),
            other => other,
        }
    }
}
