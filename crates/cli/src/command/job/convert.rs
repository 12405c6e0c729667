//! `tidemill job convert`: a job, a rule or a hook in another form, as TOML.

use crate::command::plan;
use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::ConvertedJob;
use anyhow::{Context as _, bail};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_lang::rule::Rule;
use tidemill_lang::rule::hook::HookSpec;
use tidemill_lang::script::{self, SettingGroup, TextForm};

const EXAMPLES: &str = "Examples:
  tidemill job convert job.conf                          print a job in libconfig as TOML
  tidemill job convert monthly.xml --output monthly.toml
  tidemill job convert hooks.txt --hook extremes         one hook of a text for .tidemill/hooks

FILE is a job or a rule in libconfig, a rule in XML, or a text for .tidemill/hooks. Comments are not kept.";

/// Convert a job, a rule or a hook to TOML
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Local file to convert; `-` for standard input
    file: PathBuf,
    /// Output path on this machine [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name of the hook, if the file has several
    #[arg(long, value_name = "NAME")]
    hook: Option<String>,
}

pub(super) fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = read(&args.file).with_context(|| format!("can't read {name}"))?;
    let toml = settings(&name, &text, args.hook.as_deref())?.to_toml();
    if let Some(path) = &args.output {
        plan::write(path, &toml)?;
    }
    let text = match &args.output {
        Some(path) => format!("{name} converted to {}", path.display()),
        None => toml.clone(),
    };
    context.output.finish(&Message(text, ConvertedJob { toml }))
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file);
    }
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the settings of a job, a rule or a hook.
fn settings(name: &str, text: &[u8], hook: Option<&str>) -> anyhow::Result<SettingGroup> {
    let lossy = String::from_utf8_lossy(text);
    let form = TextForm::of(&lossy);
    if let (Some(hook), true) = (hook, form != TextForm::Sections) {
        bail!("--hook {hook}: {name} is no text for .tidemill/hooks; leave --hook out");
    }
    match form {
        TextForm::Libconfig | TextForm::Toml => Ok(script::parse(name, text)?),
        TextForm::Xml => Ok(Rule::settings(name, &lossy)?),
        TextForm::Sections => {
            let hooks = HookSpec::read_all(&lossy).with_context(|| name.to_owned())?;
            Ok(chosen(name, &hooks, hook)?.rule_settings())
        }
    }
}

/// Returns the hook with a name, or the only hook.
fn chosen<'a>(
    file: &str,
    hooks: &'a [HookSpec],
    wanted: Option<&str>,
) -> anyhow::Result<&'a HookSpec> {
    let names = || {
        let names = hooks.iter().map(HookSpec::own_name);
        names.collect::<Vec<_>>().join(", ")
    };
    match (wanted, hooks) {
        (_, []) => bail!("{file} has no hooks"),
        (None, [only]) => Ok(only),
        (None, _) => {
            bail!(
                "{file} has several hooks; a TOML file has one: give --hook and one of {}",
                names()
            )
        }
        (Some(wanted), _) => {
            let found = hooks.iter().find(|hook| hook.own_name() == wanted);
            found.with_context(|| format!("{file} has no hook {wanted}; it has {}", names()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: &str = "</run/*.dat>\n op: map\n lib_path: wordcount\n output: out/{stem}\n</run/*.dat>\n\
                         </raw/*.nc>\n lib_path: max\n output: max/{stem}\n name: extremes\n</raw/*.nc>\n";

    fn toml(text: &str, hook: Option<&str>) -> anyhow::Result<String> {
        Ok(settings("file", text.as_bytes(), hook)?.to_toml())
    }

    #[test]
    fn convert_accepts_every_form() {
        let job = "name = \"a\"; workdir = \"/\"; tasks = ( { name = \"b\"; } );";
        let converted = toml(job, None).unwrap();
        assert_eq!(
            converted,
            "[job]\nname = \"a\"\nworkdir = \"/\"\n\n[[task]]\nname = \"b\"\n"
        );
        assert_eq!(toml(&converted, None).unwrap(), converted);
        let xml = "<rule name=\"a\" workdir=\"/\"><pattern>*.nc</pattern><program>max</program><output>o</output></rule>";
        let converted = toml(xml, None).unwrap();
        assert!(
            converted.contains("[on]\nfiles = \"*.nc\"\n"),
            "{converted}"
        );
        assert!(
            converted.contains("[task]\nkernel = \"max\"\n"),
            "{converted}"
        );
        let converted = toml(HOOKS, Some("extremes")).unwrap();
        assert!(converted.contains("[hook]\nmap = \"max\"\n"), "{converted}");
        Rule::read("hook.toml", &converted).unwrap();
    }

    #[test]
    fn convert_reports_file_and_names_of_hooks() {
        let error = |text: &str, hook: Option<&str>| format!("{:#}", toml(text, hook).unwrap_err());
        assert!(error("name = ;", None).starts_with("file:1:8: "));
        assert!(error("<rule>", None).starts_with("file:1:1: "));
        assert!(error("<a>\n", None).starts_with("file: line 1: "));
        assert!(error(HOOKS, None).ends_with("give --hook and one of wordcount, extremes"));
        assert!(error(HOOKS, Some("other")).ends_with("it has wordcount, extremes"));
        assert!(error("[job]", Some("a")).contains("leave --hook out"));
    }
}
