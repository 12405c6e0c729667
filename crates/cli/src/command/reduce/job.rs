//! `tidemill reduce --to PATH`: the reduction as a job of one task, so that the server records the lineage of the result.

use super::{Args, named, remote};
use crate::command::job::watch;
use crate::context::{CommandContext, credentials};
use crate::files;
use std::fmt::Write as _;
use std::process::ExitCode;
use tidemill_compute::reduction::ResultFormat;
use tidemill_model::display::line;
use tidemill_model::glob;
use tidemill_wire::v1;

/// Returns the path of the result in the cluster, if the command names one.
pub(super) fn target(args: &Args) -> anyhow::Result<Option<String>> {
    let Some(to) = &args.to else {
        return Ok(None);
    };
    Ok(Some(files::path(to)?.text("a job")?.to_owned()))
}

/// Runs the reduction as a job, and waits for its end.
pub(super) async fn run(
    args: &Args,
    to: &str,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    ResultFormat::of(to)?;
    let all = named(&args.files)?;
    let paths = &all[0].1;
    if let Some((variable, _)) = all.iter().find(|(_, own)| own != paths) {
        anyhow::bail!(
            "{variable} is of other files than {}: a job reduces variables of the same files, so run the command once for each",
            all[0].0
        );
    }
    let mut inputs: Option<Vec<String>> = None;
    for (variable, paths) in &all {
        let query = super::query(args, variable)?;
        let found = remote::inputs(&query, paths, context).await?;
        match &inputs {
            Some(known) if *known != found => anyhow::bail!(
                "{variable} is in other files than {}: a job reduces variables of the same files, so run the command once for each",
                all[0].0
            ),
            _ => inputs = Some(found),
        }
    }
    let variables: Vec<&str> = all.iter().map(|(variable, _)| variable.as_str()).collect();
    let script = script(
        &arguments(args, &variables.join(","), to),
        &inputs.unwrap_or_default(),
        to,
    );
    let server = context.connect().await?;
    let request = v1::SubmitRequest {
        credentials: Some(credentials()),
        script,
        source: "tidemill reduce".into(),
        strict: true,
        ..v1::SubmitRequest::default()
    };
    let reply = server.answer(server.jobs().submit(request).await)?;
    anyhow::ensure!(
        reply.errors.is_empty(),
        "{}",
        line(&reply.errors.join("; "))
    );
    context.note(format_args!(
        "job {} makes {to}; its lineage: tidemill lineage show {to}",
        reply.job
    ));
    watch::follow(&server, reply.job, context).await
}

/// Returns the arguments of the kernel `reduce`.
fn arguments(args: &Args, variables: &str, to: &str) -> Vec<String> {
    let list = |all: &[String]| all.join(",");
    let text = |one: &Option<String>| one.clone().unwrap_or_default();
    let form = to.rsplit_once('.').map_or("nc", |(_, form)| form);
    let ddof = match args.ddof {
        0 => String::new(),
        ddof => ddof.to_string(),
    };
    let all = [
        ("op", args.operation.clone()),
        ("variable", variables.to_owned()),
        ("where", list(&args.select)),
        ("over", list(&args.over)),
        ("by", text(&args.by)),
        ("weights", text(&args.weights)),
        ("ddof", ddof),
        ("q", list(&args.quantiles)),
        ("bins", text(&args.bins)),
        ("along", text(&args.along)),
        (
            "ensemble",
            if args.ensemble { "yes" } else { "" }.to_owned(),
        ),
        ("join", text(&args.join)),
        ("time-at", text(&args.time_at)),
        ("to", form.to_owned()),
    ];
    let all = all.into_iter().filter(|(_, value)| !value.is_empty());
    all.map(|(key, value)| format!("{key}={value}")).collect()
}

/// Returns a job file of one task.
fn script(arguments: &[String], inputs: &[String], to: &str) -> String {
    let list = |all: &[String]| {
        let all: Vec<String> = all.iter().map(|one| quoted(one)).collect();
        all.join(", ")
    };
    let below = |path: &String| path.trim_start_matches('/').to_owned();
    let inputs = inputs.iter().map(below);
    let inputs: Vec<String> = inputs.map(|input| glob::escaped(&input)).collect();
    format!(
        "name = \"reduce\";\nworkdir = \"/\";\ntasks = ( {{ name = \"reduce\"; kernel = \"reduce\"; args = [ {} ]; input = [ {} ]; output = [ {} ]; }} );\n",
        list(arguments),
        list(&inputs),
        quoted(&below(&to.to_owned())),
    )
}

/// Returns a string of a job file.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_ascii_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduce_job_script_quotes_names() {
        let script = script(
            &["op=mean".to_owned(), "variable=a\"b".to_owned()],
            &["/d/ä\n.nc".to_owned(), "/z.zarr/".to_owned()],
            "/out.nc",
        );
        assert!(
            script.contains("args = [ \"op=mean\", \"variable=a\\\"b\" ]"),
            "{script}"
        );
        assert!(
            script.contains("input = [ \"d/ä\\x0a.nc\", \"z.zarr/\" ]"),
            "{script}"
        );
        assert!(script.contains("output = [ \"out.nc\" ]"), "{script}");
    }
}
