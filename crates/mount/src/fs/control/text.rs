//! Text of the files of the control directory, for users and simple scripts.

use std::fmt::Write as _;
use tidemill_model::id::ObjectId;
use tidemill_model::lineage;
use tidemill_wire::v1;

const MILLISECOND_NS: i64 = 1_000_000;

/// Returns the text of `joblist`: one line for each job with the script's path and the job's handle.
pub(super) fn job_list(jobs: &[v1::Job]) -> String {
    let mut text = String::new();
    for job in jobs {
        let _ = writeln!(text, "{} {}", job.source, job.job);
    }
    text
}

fn state(number: i32) -> String {
    v1::State::try_from(number)
        .map_or("unknown", |state| state.as_str_name())
        .to_lowercase()
}

/// Returns the text of a job's status file: the job and its tasks.
pub(super) fn job_status(job: &v1::Job) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "job      {}", job.job);
    let _ = writeln!(text, "name     {}", job.name);
    let _ = writeln!(text, "script   {}", job.source);
    let _ = writeln!(text, "workdir  {}", job.workdir);
    let _ = writeln!(text, "policy   {}", job.policy);
    let _ = writeln!(text, "state    {}", state(job.state));
    let _ = writeln!(text, "fetched  {} bytes", job.transferred_bytes);
    if let Some(energy) = &job.energy {
        let (micro, runs, unknown) = (energy.microjoules, energy.runs, energy.unknown);
        let _ = writeln!(
            text,
            "energy   {micro} microjoules above idle in {runs} runs, estimated; {unknown} runs not known"
        );
    }
    let header = [
        "task", "kernel", "state", "node", "ms", "read", "written", "error",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for task in &job.tasks {
        let placed = task.state >= v1::State::Sent.into();
        let ended = task.end > task.start;
        rows.push([
            task.name.clone(),
            task.kernel.clone(),
            state(task.state),
            if placed {
                task.node.to_string()
            } else {
                "-".into()
            },
            if ended {
                ((task.end - task.start) / MILLISECOND_NS).to_string()
            } else {
                "-".into()
            },
            task.read_bytes.to_string(),
            task.written_bytes.to_string(),
            task.error.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows));
    text
}

/// Formats rows of cells as a table whose columns are as wide as their widest cell.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0);
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the text of a node's status file, with one property in each line.
pub(super) fn node_status(node: &v1::Node) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "node           {}", node.node);
    let _ = writeln!(text, "role           {}", node.role);
    if !node.tier.is_empty() {
        let _ = writeln!(text, "tier           {}", node.tier);
    }
    let _ = writeln!(
        text,
        "state          {}",
        if node.up { "up" } else { "down" }
    );
    let _ = writeln!(text, "url            {}", node.url);
    let _ = writeln!(text, "directory      {}", node.directory);
    let _ = writeln!(text, "cores          {}", node.cores);
    let _ = writeln!(text, "memory         {} bytes", node.memory_bytes);
    for (name, amount) in &node.resources {
        let _ = writeln!(text, "resource       {name} = {amount}");
    }
    let _ = writeln!(text, "running        {}", node.running);
    let _ = writeln!(text, "queued         {}", node.queued);
    let _ = writeln!(text, "capacity       {} bytes", node.capacity_bytes);
    let _ = writeln!(text, "free           {} bytes", node.free_bytes);
    let _ = writeln!(text, "written        {} bytes", node.bytes_written);
    let _ = writeln!(text, "read           {} bytes", node.bytes_read);
    let (whole, milli) = (node.load_milli / 1000, node.load_milli % 1000);
    let _ = writeln!(text, "load           {whole}.{milli:03}");
    let _ = writeln!(text, "sandbox        {}", node.sandbox);
    if let Some(model) = &node.flash_model {
        flash_model(model, &mut text);
    }
    text
}

/// Appends the effect of the node's writes on a modelled flash device to the text, with one property in each line.
fn flash_model(model: &v1::FlashModel, text: &mut String) {
    let _ = writeln!(
        text,
        "flash model    from what the node wrote, no reading of its device:"
    );
    let _ = writeln!(text, "  written      {} bytes", model.host_bytes);
    let _ = writeln!(text, "  programmed   {} bytes", model.flash_bytes);
    let thousandths = |number: u64| format!("{}.{:03}", number / 1000, number % 1000);
    let amplification = thousandths(model.write_amplification_milli);
    let _ = writeln!(text, "  amplified    {amplification}");
    let _ = writeln!(text, "  in use       {} bytes", model.used_bytes);
    let _ = writeln!(text, "  left out     {} bytes", model.left_out_bytes);
    let (least, most) = (model.erases_min, model.erases_max);
    let mean = thousandths(model.erases_mean_milli);
    let _ = writeln!(text, "  erases       {least} to {most}, mean {mean}");
    let (percent, rest) = (model.worn_ppb / 10_000_000, model.worn_ppb % 10_000_000);
    let _ = writeln!(text, "  worn         {percent}.{rest:07} %");
    let (free, size) = (model.free_blocks, model.block_bytes);
    let _ = writeln!(text, "  free         {free} blocks of {size} bytes");
    let _ = writeln!(text, "  collection   {}", collection(model));
}

fn collection(model: &v1::FlashModel) -> &'static str {
    match model {
        model if model.collection_forced => "forced",
        model if model.collection_under_way => "under way",
        model if model.collection_wanted => "wanted",
        _ => "idle",
    }
}

/// Returns the text of a lineage file: the inputs of an object and the objects that were made from the object.
pub(super) fn lineage(reply: &v1::LineageReply) -> String {
    let graph = tidemill_wire::lineage::graph(reply);
    let asked = lineage::Vertex::Version(ObjectId(reply.object));
    lineage::text::trees(&graph, &[asked], true, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_list_shows_script_and_number() {
        let job = |job, source: &str| v1::Job {
            job,
            source: source.into(),
            ..v1::Job::default()
        };
        assert_eq!(
            job_list(&[job(3, "/a.conf"), job(9, "/b.conf")]),
            "/a.conf 3\n/b.conf 9\n"
        );
    }

    #[test]
    fn job_status_has_one_aligned_line_per_task() {
        let task = |name: &str, state: v1::State| v1::Task {
            name: name.into(),
            kernel: "mean".into(),
            state: state.into(),
            ..v1::Task::default()
        };
        let job = v1::Job {
            tasks: vec![
                task("a", v1::State::Done),
                task("longer", v1::State::Waiting),
            ],
            ..v1::Job::default()
        };
        let text = job_status(&job);
        assert!(text.contains("a       mean    done     0"), "{text}");
        assert!(text.contains("longer  mean    waiting  -"), "{text}");
    }
}
