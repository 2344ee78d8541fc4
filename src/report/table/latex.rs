//! The tables of a report in LaTeX, with the rules of booktabs.

use crate::table::{broken, tables};
use crate::text::plain;
use crate::{Report, Table};

impl Report {
    /// Returns the tables of the Markdown output, each in an environment `table` with its caption; needs
    /// `\usepackage{booktabs}`.
    pub fn latex(&self) -> String {
        let tables: Vec<String> = tables(self).iter().map(environment).collect();
        let verdict = if self.verdict.is_empty() { String::new() } else { format!("% {}\n", plain(&self.verdict)) };
        format!("% \\usepackage{{booktabs}}\n{verdict}{}", tables.join("\n"))
    }
}

fn environment(Table { caption, header, rows }: &Table) -> String {
    let width = rows.iter().map(Vec::len).chain([header.len()]).max().unwrap_or(0);
    let line = |mut cells: Vec<String>| {
        cells.resize(width, String::new());
        format!("    {} \\\\\n", cells.join(" & ").trim_end())
    };
    let columns = if width == 0 { String::new() } else { format!("l{}", "r".repeat(width - 1)) };
    let caption = if caption.is_empty() { String::new() } else { format!("  \\caption{{{}}}\n", escaped(caption)) };
    let body: String = rows.iter().map(|row| line(row.iter().map(|cell| escaped(cell)).collect())).collect();
    format!(
        "\\begin{{table}}\n  \\centering\\small\\tabcolsep=5pt\n{caption}  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n{}    \\midrule\n{body}    \
         \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n",
        line(header.iter().map(|name| stacked(name)).collect())
    )
}

/// Writes a long column name over two lines: eight columns of figures fit the width of a page.
fn stacked(name: &str) -> String {
    match broken(name).split_once('\n') {
        Some((above, below)) => format!("\\shortstack[r]{{{}\\\\{}}}", escaped(above), escaped(below)),
        None => escaped(name),
    }
}

/// Escapes commands, and signs that some fonts lack.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in plain(text).chars() {
        match c {
            '&' | '%' | '_' | '#' | '$' | '{' | '}' => out.extend(['\\', c]),
            '~' => out += "\\textasciitilde{}",
            '^' => out += "\\textasciicircum{}",
            '\\' => out += "\\textbackslash{}",
            '<' => out += "\\textless{}",
            '>' => out += "\\textgreater{}",
            '|' => out += "\\textbar{}",
            '"' => out += "''",
            '\u{a0}' => out.push('~'),
            '×' => out += "$\\times$",
            'µ' | 'μ' => out += "$\\mu$",
            '·' => out += "$\\cdot$",
            'Σ' => out += "$\\Sigma$",
            '−' => out += "$-$",
            '–' => out += "--",
            '—' => out += "---",
            '…' => out += "\\ldots{}",
            '≤' => out += "$\\leq$",
            '≥' => out += "$\\geq$",
            '±' => out += "$\\pm$",
            c => out.push(c),
        }
    }
    out
}
