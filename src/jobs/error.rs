//! Why files are no job.

/// Why files are no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A file is not what its kind expects, at `FILE:LINE`.
    #[error("{place}: {why}")]
    File {
        /// File and line.
        place: String,
        /// What was expected, what was found, and what to do.
        why: String,
    },
    /// Values that the job takes from elsewhere: environment variables, positional parameters or files.
    #[error("{}", missing(.0))]
    Missing(Vec<Missing>),
}

/// Something that the job needs and that its files do not say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// A variable that is set elsewhere, and the option that uses it.
    Variable {
        /// Its name.
        name: String,
        /// The option, or the place, that needs it.
        used_by: String,
    },
    /// A positional parameter of the script, counted from 1.
    Parameter {
        /// Its number.
        number: usize,
        /// The variable that it is assigned to, or the option that needs it.
        used_by: String,
    },
    /// A file that the job refers to.
    File {
        /// Its path, as the job writes it.
        path: String,
    },
    /// The number of GPUs.
    World,
}

fn missing(all: &[Missing]) -> String {
    let variables: Vec<String> = all
        .iter()
        .filter_map(|one| match one {
            Missing::Variable { name, used_by } => Some(format!("{name} (for {used_by})")),
            _ => None,
        })
        .collect();
    let parameters: Vec<String> = all
        .iter()
        .filter_map(|one| match one {
            Missing::Parameter { number, used_by } => Some(format!("${number} ({used_by})")),
            _ => None,
        })
        .collect();
    let files = all.iter().filter_map(|one| match one {
        Missing::File { path } => {
            Some(format!("expected the file {path}, which the job reads; give it with `job-file`"))
        }
        _ => None,
    });
    let mut sentences = Vec::new();
    if !variables.is_empty() {
        let all = variables.join(", ");
        sentences.push(format!(
            "expected variables that are set outside of the script: {all}; give each with `job-env` NAME=VALUE"
        ));
    }
    if !parameters.is_empty() {
        let all = parameters.join(", ");
        sentences.push(format!("expected parameters of the script: {all}; give all of them with `job-args`"));
    }
    sentences.extend(files);
    if all.contains(&Missing::World) {
        sentences.push("expected the number of GPUs, which the job does not say; give it with `gpus`".to_string());
    }
    sentences.join(". ")
}
