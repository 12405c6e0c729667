//! State of the whole array: its elements, its server, its running jobs.

use super::health::{HealthView, conditions_json, conditions_text};
use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::score::{energy_class, speed_class};
use tidemill_wire::convert::state_name;
use tidemill_wire::v1;

/// Output of `tidemill status`.
#[derive(Debug)]
pub(crate) struct ArrayView {
    /// Address at which the server was reached.
    pub(crate) endpoint: String,
    /// Reply of the server.
    pub(crate) status: v1::StatusReply,
    /// Jobs that have not ended.
    pub(crate) running: Vec<v1::Job>,
}

impl View for ArrayView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let status = &self.status;
        writeln!(
            out,
            "server    {}, since {} UTC",
            self.endpoint,
            format::time(status.started)
        )?;
        writeln!(
            out,
            "policies  {} (default {})",
            status.policies.join(", "),
            status.default_policy
        )?;
        conditions_text(&status.conditions, out)?;
        let up = status.elements.iter().filter(|element| element.up).count();
        let sleeps = |element: &&v1::Element| element.sleep.as_ref().is_some_and(|s| s.suspended);
        let suspended = match status.elements.iter().filter(sleeps).count() {
            0 => String::new(),
            count => format!(", {count} suspended"),
        };
        writeln!(
            out,
            "elements  {up} of {} up{}, {} free of {}\n",
            status.elements.len(),
            suspended,
            format::bytes(status.free_bytes),
            format::bytes(status.capacity_bytes)
        )?;
        self.elements_text(out)?;
        self.sleep_text(out)?;
        self.staged_text(out)?;
        for hook in &status.hooks_behind {
            let files = format::count(hook.files, "file");
            let bytes = format::bytes(hook.bytes);
            let name = tidemill_core::shown::line(&hook.name);
            writeln!(
                out,
                "\nhook      {name} lags behind: {files}, {bytes} closed and not mapped yet; what is written is mapped when it is closed"
            )?;
        }
        if status.maps_held > 0 {
            let files = format::count(status.maps_held, "file");
            let share = status.burst_share;
            writeln!(
                out,
                "\nhooks     {files} mapped when the burst is over, or in a moment (--burst-share {share})"
            )?;
        }
        self.energy_text(out)?;
        self.mounts_text(out)?;
        if status.spilled > 0 {
            let spilled = format::count(status.spilled, "file");
            writeln!(
                out,
                "\nmemory    {spilled} asked for memory in vain and went to disks, since the server started"
            )?;
        }
        self.unsealed_text(out)?;
        self.copies_text(out)?;
        if self.running.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        super::job::jobs_text(&self.running, out)
    }

    fn json(&self) -> Value {
        let status = &self.status;
        json!({
            "endpoint": self.endpoint,
            "protocol": status.version,
            "array": format!("{:016x}", status.array_id),
            "started": status.started,
            "default_policy": status.default_policy,
            "policies": status.policies,
            "trouble": status.trouble,
            "capacity_bytes": status.capacity_bytes,
            "free_bytes": status.free_bytes,
            "elements": status.elements.iter().map(element_json).collect::<Vec<_>>(),
            "mounts": status.mounts.iter().map(mount_json).collect::<Vec<_>>(),
            "health": health_word(status),
            "states": conditions_json(&status.conditions),
            "copies": copies_json(status.copies.as_ref()),
            "spilled": status.spilled,
            "hooks_behind": status.hooks_behind.iter().map(|hook| json!({
                "name": hook.name, "uid": hook.uid, "files": hook.files, "bytes": hook.bytes,
            })).collect::<Vec<_>>(),
            "maps_held": status.maps_held,
            "burst_share": status.burst_share,
            "unsealed": status.unsealed.iter().map(unsealed_json).collect::<Vec<_>>(),
            "running_jobs": self.running.iter().map(super::job::job_json).collect::<Vec<_>>(),
        })
    }
}

impl ArrayView {
    fn elements_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "ELEMENT",
            "ROLE",
            "STATE",
            "CORES",
            "MEMORY",
            "RESOURCES",
            "RUNNING",
            "QUEUED",
            "FREE",
            "CAPACITY",
            "WRITTEN",
            "URL",
        ];
        let mut rows = table(&header, &[0, 3, 4, 6, 7, 8, 9, 10]);
        for element in &self.status.elements {
            rows.add_row([
                element.element.to_string(),
                role_of(element),
                state_of(element),
                element.cores.to_string(),
                match element.memory_bytes {
                    0 => "-".into(),
                    bytes => format::bytes(bytes),
                },
                resources(element),
                element.running.to_string(),
                element.queued.to_string(),
                format::bytes(element.free_bytes),
                format::bytes(element.capacity_bytes),
                format::bytes(element.bytes_written),
                element.url.clone(),
            ]);
        }
        write_table(out, &rows)?;
        if self.status.elements.is_empty() {
            writeln!(out, "(none; start one with `tidemill element`)")?;
        }
        Ok(())
    }

    fn staged_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for element in &self.status.elements {
            if let Some(outside) = &element.outside {
                let (id, uri) = (element.element, tidemill_core::shown::line(&outside.uri));
                let (files, bytes) = (outside.files, format::bytes(outside.bytes));
                let files = format::count(files, "object");
                write!(out, "element {id}: {bytes} in {files} in {uri}")?;
                if !outside.packing.is_empty() && outside.sent != outside.bytes {
                    write!(out, ", where they take {}", format::bytes(outside.sent))?;
                }
                match outside.waiting {
                    0 => writeln!(out)?,
                    waiting => {
                        writeln!(out, "; {} not there yet", format::count(waiting, "object"))?
                    }
                }
            }
            if let Some(staged) = &element.staged {
                let (id, bytes) = (element.element, format::bytes(staged.bytes));
                let left = format::bytes(staged.bytes_left);
                writeln!(
                    out,
                    "element {id} holds {bytes} on their way, {left} of it not stored yet"
                )?;
                if staged.promised > 0 {
                    let promised = format::bytes(staged.promised);
                    let left = format::bytes(staged.promised_left);
                    writeln!(
                        out,
                        "{promised} of element {id} are promised, {left} of them not used yet; see `tidemill stage list`"
                    )?;
                }
            }
        }
        Ok(())
    }

    fn energy_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for element in &self.status.elements {
            if let Some(drawn) = &element.drawn {
                let (id, joules) = (element.element, energy::joules(drawn.microjoules));
                let span = format::span(drawn.counted_ns);
                let by = &drawn.by;
                writeln!(
                    out,
                    "\nelement {id} has drawn {joules:.0} J in {span}, {by}"
                )?;
            }
        }
        Ok(())
    }

    fn sleep_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for element in &self.status.elements {
            let Some(sleep) = &element.sleep else {
                continue;
            };
            let id = element.element;
            // The trouble of an element that does not wake is a state, and is shown with the states.
            if element.up && !sleep.trouble.is_empty() {
                writeln!(out, "\nelement {id}: {}", sleep.trouble)?;
            }
            if sleep.suspended && sleep.wakes > 0 {
                let span = format::span(sleep.wake_ns);
                writeln!(out, "\nelement {id} is suspended; it takes {span} to wake")?;
            }
        }
        Ok(())
    }

    fn mounts_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, mount) in self.status.mounts.iter().enumerate() {
            if index == 0 {
                writeln!(out)?;
            }
            writeln!(
                out,
                "mounted   {} on {}, since {} UTC",
                mount.path,
                mount.host,
                format::time(mount.since)
            )?;
        }
        Ok(())
    }

    fn copies_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(copies) = &self.status.copies else {
            return Ok(());
        };
        let lost = copies.lost_elements.len() as u64;
        let said = [
            (copies.lost, "file", "that can't be had"),
            (copies.damaged, "damaged copy", ""),
            (copies.short, "file", "with fewer copies than wanted"),
            (lost, "element", "given up"),
        ];
        let said = said.into_iter().filter(|(count, ..)| *count > 0);
        let said = said.map(|(count, noun, what)| {
            let counted = match (noun, count) {
                ("damaged copy", 2..) => format!("{count} damaged copies"),
                _ => format::count(count, noun),
            };
            format!("{counted} {what}").trim_end().to_owned()
        });
        let said: Vec<String> = said.collect();
        if !said.is_empty() {
            writeln!(
                out,
                "\nhealth    {}: {}: see `tidemill health`",
                health_word(&self.status),
                said.join(", ")
            )?;
        }
        Ok(())
    }

    fn unsealed_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, unsealed) in self.status.unsealed.iter().enumerate() {
            if index == 0 {
                writeln!(out)?;
            }
            writeln!(
                out,
                "unsealed  {} on element {}, the oldest since {} UTC: {}",
                format::count(unsealed.versions, "version"),
                unsealed.element,
                format::time(unsealed.oldest),
                unsealed.why
            )?;
        }
        Ok(())
    }
}

fn state_of(element: &v1::Element) -> String {
    let sleep = element.sleep.as_ref();
    let waking = sleep.is_some_and(|sleep| sleep.waking);
    let suspended = sleep.is_some_and(|sleep| sleep.suspended);
    let state = match (element.up, suspended, waking) {
        (true, ..) => "up",
        (_, true, true) => "waking",
        (_, true, false) => "suspended",
        _ => "down",
    };
    match element.emptied {
        true => format!("{state}, emptied"),
        false => state.into(),
    }
}

/// Returns the energy of an element and the method that determined it; null if it is not known.
fn energy_json(element: &v1::Element) -> Value {
    let Some(drawn) = &element.drawn else {
        return Value::Null;
    };
    json!({
        "joules": energy::joules(drawn.microjoules),
        "counted_ns": drawn.counted_ns,
        "by": drawn.by,
    })
}

fn sleep_json(element: &v1::Element) -> Value {
    let sleep = element.sleep.clone().unwrap_or_default();
    json!({
        "suspended": sleep.suspended,
        "waking": sleep.waking,
        "since": sleep.since,
        "wakes": sleep.wakes,
        "wake_ns": sleep.wake_ns,
        "trouble": sleep.trouble,
        "needed": sleep.needed,
    })
}

/// Returns the named resources in the form of flags.
fn resources(element: &v1::Element) -> String {
    let named = element.resources.iter();
    let named: Vec<String> = named
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    named.join(",")
}

fn mount_json(mount: &v1::Mount) -> Value {
    json!({
        "session": mount.session,
        "host": mount.host,
        "path": mount.path,
        "since": mount.since,
    })
}

/// Returns the health of the array in one word, like `tidemill health`.
fn health_word(status: &v1::StatusReply) -> &'static str {
    let copies = status.copies.clone().unwrap_or_default();
    let view = HealthView {
        health: v1::HealthReply {
            lost: copies.lost,
            short: copies.short,
            damaged: copies.damaged,
            lost_elements: copies.lost_elements,
            ..v1::HealthReply::default()
        },
        elements: Vec::new(),
        conditions: status.conditions.clone(),
    };
    view.word()
}

fn copies_json(copies: Option<&v1::CopyHealth>) -> Value {
    let copies = copies.cloned().unwrap_or_default();
    let paths = copies.lost_paths.iter();
    json!({
        "short": copies.short,
        "lost": copies.lost,
        "lost_paths": paths.map(|path| tidemill_core::shown::escaped(path)).collect::<Vec<_>>(),
        "lost_elements": copies.lost_elements,
        "damaged": copies.damaged,
    })
}

fn unsealed_json(unsealed: &v1::Unsealed) -> Value {
    json!({
        "element": unsealed.element,
        "session": unsealed.session,
        "versions": unsealed.versions,
        "oldest": unsealed.oldest,
        "ended": unsealed.ended,
        "why": unsealed.why,
    })
}

/// Returns the role of an element, and the location of its files.
fn role_of(element: &v1::Element) -> String {
    let outside = element.outside.as_ref().map(|_| "outside".to_owned());
    let more = [&element.tier, &element.medium];
    let more = more
        .into_iter()
        .chain(&outside)
        .filter(|word| !word.is_empty());
    let words: Vec<&str> = std::iter::once(&element.role)
        .chain(more)
        .map(String::as_str)
        .collect();
    words.join(", ")
}

fn staged_json(element: &v1::Element) -> Option<Value> {
    let staged = element.staged?;
    Some(json!({
        "objects": staged.objects,
        "bytes": staged.bytes,
        "drained": staged.drained,
        "bytes_left": staged.bytes_left,
        "promised": staged.promised,
        "promised_left": staged.promised_left,
        "oldest": (staged.oldest != 0).then_some(staged.oldest),
    }))
}

fn outside_json(element: &v1::Element) -> Option<Value> {
    let outside = element.outside.as_ref()?;
    Some(json!({
        "uri": outside.uri,
        "objects": outside.files,
        "bytes": outside.bytes,
        "waiting": outside.waiting,
        "sent": outside.sent,
        "as": outside.packing,
    }))
}

fn element_json(element: &v1::Element) -> Value {
    let mut value = tidemill_element::status_json(element);
    let known_by_the_server = [
        ("medium", medium(element).into()),
        ("tier", tier(element).into()),
        ("staged", staged_json(element).into()),
        ("outside", outside_json(element).into()),
        ("up", element.up.into()),
        ("emptied", element.emptied.into()),
        ("sleep", sleep_json(element)),
        ("energy", energy_json(element)),
        ("measured_milliwatts", measured(element)),
        ("idle_milliwatts", element.idle_milli.into()),
        ("suspended_milliwatts", element.suspended_milli.into()),
        ("host", element.host.clone().into()),
        ("folder", element.folder.clone().into()),
        (
            "speed_class",
            speed_class(element.device_bytes_per_sec).into(),
        ),
        ("energy_class", energy_class(element.watts_milli).into()),
        ("heard", element.heard.into()),
        ("trouble", element.trouble.clone().into()),
    ];
    for (name, known) in known_by_the_server {
        value[name] = known;
    }
    value
}

fn medium(element: &v1::Element) -> &str {
    match element.medium.as_str() {
        "" => "disk",
        medium => medium,
    }
}

fn tier(element: &v1::Element) -> &str {
    match element.tier.as_str() {
        "" => "store",
        tier => tier,
    }
}

/// Returns the measured power, if the element has a meter.
fn measured(element: &v1::Element) -> Value {
    let has_meter = !element.measured_by.is_empty();
    has_meter.then_some(element.measured_milli).into()
}

/// Returns the name of a state from the network.
pub(crate) fn state(number: i32) -> &'static str {
    state_name(v1::State::try_from(number).unwrap_or(v1::State::Unspecified))
}
