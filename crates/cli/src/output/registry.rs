//! All types that commands print, and the commands that print them. [`Output`](super::Output) prints no other type.

use super::table::{AnyRow, Row};
use super::{
    apps, check, cluster, config, doctor, explain, files, find, health, inspect, job, kernel,
    lineage, messages, node, places, plan, reduce, remote, report, rule, stage, stat, token,
    workspace,
};

/// Type in the list of this module.
pub(crate) trait Registered: serde::Serialize {
    /// Commands that print the type, such as `job list`; `*` stands for all commands.
    const COMMANDS: &'static [&'static str];
}

/// Type that commands print.
pub(crate) struct Entry {
    /// Commands that print the type.
    pub(crate) commands: &'static [&'static str],
    /// Titles of the columns of its tables.
    pub(crate) titles: Vec<&'static str>,
    /// Makes the schema of the type.
    #[cfg(test)]
    pub(crate) schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

/// Declares the types: the rows of their tables, and the commands that print them.
macro_rules! registry {
    ($($type:ty $([$($row:ty),*])?: $($command:literal),+;)*) => {
        $(impl Registered for $type {
            const COMMANDS: &'static [&'static str] = &[$($command),+];
        })*

        /// Returns all types.
        pub(crate) fn entries() -> Vec<Entry> {
            vec![$(Entry {
                commands: <$type>::COMMANDS,
                titles: titles_of(&[$($(<$row>::titles()),*)?]),
                #[cfg(test)]
                schema: schemars::SchemaGenerator::subschema_for::<$type>,
            }),*]
        }
    };
}

registry! {
    messages::Failure: "*";
    messages::StartedCluster: "up";
    messages::StoppedCluster: "down";
    cluster::Status [node::Node, job::Job]: "status";
    doctor::Checks: "doctor";
    files::Listing [files::Entry]: "ls";
    messages::FileCount: "get", "put", "migrate";
    messages::PlannedRemoval: "rm";
    messages::PlannedCopy: "cp", "sync";
    messages::PlannedDeletion: "sync";
    messages::CopySummary: "cp", "sync";
    stat::Stat [stat::Place]: "stat";
    files::Settings [files::DirectorySetting]: "set";
    places::Migration: "migrate";
    messages::PlannedRewrite: "migrate";
    find::Found: "find";
    inspect::Inspection [inspect::ShownVariable]: "inspect";
    reduce::Reduced [AnyRow]: "reduce";
    messages::Submission: "submit", "job submit";
    plan::DryRun [plan::PlannedTask]: "submit", "job submit";
    job::JobChange: "submit", "job submit", "job watch", "reduce";
    job::Job [job::Task]: "job show", "job cancel", "submit", "job submit", "job watch", "reduce";
    job::Jobs [job::Job]: "job list";
    job::TaskLogs: "job logs";
    explain::Decisions [explain::Estimate]: "job explain";
    report::JobReport [report::KernelCosts]: "job report";
    messages::DeletedJobs: "job delete";
    messages::ConvertedJob: "job convert";
    rule::Rules [rule::Rule]: "rule list";
    rule::Rule [rule::HookBatch]: "rule create", "rule show", "rule pause", "rule resume", "rule delete";
    messages::RuleDirectory: "rule create";
    rule::RuleTest: "rule test";
    rule::RuleLog [rule::RuleRun]: "rule log";
    messages::ClosedBatch: "rule flush";
    messages::RetriedRuns: "rule retry";
    kernel::Kernels [kernel::StoredKernel]: "kernel list";
    messages::NewKernel: "kernel new";
    messages::BuiltKernel: "kernel build";
    kernel::KernelRun [kernel::KernelRun]: "kernel test";
    messages::MergeInvariance: "kernel test";
    kernel::MeasuredRates [kernel::MeasuredRate]: "kernel bench";
    messages::AddedKernel: "kernel add";
    messages::DeletedKernels: "kernel delete";
    lineage::Lineage: "lineage show", "lineage versions", "lineage search";
    lineage::Differences: "lineage diff";
    messages::FileEvent: "events";
    messages::StoredFiles: "exec";
    workspace::Workspaces [workspace::Workspace]: "workspace list";
    workspace::Workspace: "workspace create", "workspace delete";
    messages::WorkspaceLease: "workspace join", "workspace leave";
    stage::Placed: "stage status";
    stage::StageOutPlan: "stage out";
    stage::Staged: "stage in", "stage out";
    stage::Reservations [stage::Reservation]: "stage reservations";
    stage::Reservation: "stage reserve", "stage release";
    remote::RemoteList [remote::Remote]: "remote list";
    remote::Remote: "remote add", "remote attach", "remote refresh", "remote detach", "remote delete";
    messages::RemoteCheck: "remote check";
    node::Nodes [node::Node]: "node list";
    node::Node: "node show";
    places::Drain: "node drain";
    messages::DrainPlan: "node drain";
    messages::NodeDraining: "node undrain";
    messages::SuspendedNode: "node suspend", "node resume";
    messages::RemovedNode: "node remove";
    messages::RemovalPlan: "node remove";
    remote::RecoverableFiles [remote::RecoverableFile]: "node recover-files";
    messages::RecoveredFiles: "node recover-files";
    health::Health: "cluster health";
    messages::Backup: "cluster backup";
    check::Finding: "cluster fsck";
    check::Checked: "cluster fsck";
    health::ScrubRequest: "cluster scrub";
    health::ScrubResult: "cluster scrub";
    places::Rebalance [places::Fill, places::Flow]: "cluster rebalance";
    places::Maintenance [places::MaintenanceTask]: "cluster tasks";
    messages::CreatedToken: "token create";
    token::Tokens [token::Token]: "token list";
    token::Token: "token revoke";
    config::Configuration [config::ShownSetting]: "config show";
    messages::ConfigurationCheck: "config check";
    messages::RecoveredDatabase: "server recover";
    apps::Applications [apps::Application]: "async status";
    plan::Simulated [tidemill_plan::sim::TaskReport]: "plan run";
    plan::Sweep: "plan sweep";
    plan::Comparison: "plan compare";
    plan::PowerComparison: "plan power";
    plan::OffloadAdvice [plan::FeasibleChoice]: "plan offload";
    plan::HookPlan: "plan burst";
    plan::Model [AnyRow]: "plan model";
    messages::ManualPages: "man";
}

fn titles_of(tables: &[Vec<&'static str>]) -> Vec<&'static str> {
    tables.concat()
}

/// Returns whether a command is in a list; `plan model` stands for all its subcommands.
pub(crate) fn prints(commands: &[&str], command: &str) -> bool {
    commands.iter().any(|one| {
        let rest = command.strip_prefix(one);
        *one == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// Returns the titles of all tables of a command.
pub(crate) fn titles(command: &str) -> Vec<&'static str> {
    let entries = entries().into_iter();
    let printed = entries.filter(|entry| prints(entry.commands, command));
    printed.flat_map(|entry| entry.titles).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use schemars::generate::SchemaSettings;
    use serde_json::{Map, Value, json};
    use std::collections::BTreeMap;

    const FILE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/json-output.schema.json"
    );

    /// Commands without JSON output: they print nothing, the bytes of files, documents in formats of their own, or logs.
    const SILENT: [&str; 10] = [
        "async agent",
        "cat",
        "completions",
        "job export-trace",
        "mkdir",
        "mount",
        "mv",
        "node run",
        "server run",
        "workspace get",
    ];

    /// Returns the paths of all commands without subcommands.
    fn commands(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        if !command.has_subcommands() {
            found.push(path.trim_start().to_owned());
        }
        for command in command.get_subcommands() {
            commands(command, &path, found);
        }
    }

    fn all_commands() -> Vec<String> {
        let mut found = Vec::new();
        for command in crate::args::Cli::command().get_subcommands() {
            commands(command, "", &mut found);
        }
        found
    }

    /// Returns the schema, one line for each type and each command.
    fn schema() -> String {
        let mut generator = SchemaSettings::draft2020_12()
            .for_serialize()
            .into_generator();
        let mut printed: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for entry in entries() {
            let schema = Value::from((entry.schema)(&mut generator));
            for command in entry.commands {
                printed.entry(command).or_default().push(schema.clone());
            }
        }
        let mut definitions: Map<String, Value> =
            generator.take_definitions(true).into_iter().collect();
        for (command, mut schemas) in printed {
            let name = match command {
                "*" => "error".to_owned(),
                command => format!("tidemill {command}"),
            };
            let schema = match schemas.len() {
                1 => schemas.remove(0),
                _ => json!({ "anyOf": schemas }),
            };
            definitions.insert(name, schema);
        }
        let lines = definitions
            .iter()
            .map(|(name, schema)| format!("{}: {schema}", json!(name)));
        let lines = lines.collect::<Vec<_>>().join(",\n");
        let draft = "https://json-schema.org/draft/2020-12/schema";
        format!(
            "{{\"$schema\": \"{draft}\", \"title\": \"Output of tidemill --json\", \"$defs\": {{\n{lines}\n}}}}\n"
        )
    }

    #[test]
    fn schema_file_describes_all_outputs() {
        let schema = schema();
        let parsed: Value = serde_json::from_str(&schema).unwrap();
        assert!(parsed["$defs"]["tidemill job list"].is_object());
        if std::env::var_os("TIDEMILL_WRITE_SCHEMA").is_some() {
            std::fs::write(FILE, &schema).unwrap();
        }
        let written = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(
            written == schema,
            "docs/json-output.schema.json is out of date: run this test with TIDEMILL_WRITE_SCHEMA=1"
        );
    }

    #[test]
    fn every_command_has_outputs_or_is_silent() {
        let all = all_commands();
        for command in &all {
            let printed = entries()
                .iter()
                .filter(|entry| entry.commands != ["*"] && prints(entry.commands, command))
                .count();
            assert_eq!(
                printed == 0,
                SILENT.contains(&command.as_str()),
                "{command}"
            );
        }
        for command in entries()
            .iter()
            .flat_map(|entry| entry.commands)
            .filter(|command| **command != "*")
        {
            assert!(
                all.iter().any(|one| prints(&[*command], one)),
                "no such command: {command}"
            );
        }
        assert!(
            SILENT
                .iter()
                .all(|command| all.iter().any(|one| one == command))
        );
    }

    #[test]
    fn columns_of_a_table_have_different_names() {
        for entry in entries() {
            for command in entry.commands {
                let names: Vec<_> = entry
                    .titles
                    .iter()
                    .map(|title| super::super::table::name(title))
                    .collect();
                let tables = [&["status", "cluster rebalance"][..]].concat();
                let distinct: std::collections::BTreeSet<_> = names.iter().collect();
                assert!(
                    distinct.len() == names.len() || tables.contains(command),
                    "{command}: {names:?}"
                );
                assert!(names.iter().all(|name| !name.is_empty()), "{command}");
            }
        }
    }
}
