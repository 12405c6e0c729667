//! Lineage as PROV-JSON (W3C Member Submission, 24 April 2013): versions are entities, runs activities,
//! users agents. Names are in the namespace `urn:tidemill:`.

use super::{Graph, Record, Version, Writer, iso_time};
use crate::label::Owner;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Members of one section of the document: identifier to rendered attributes.
type Section = BTreeMap<String, String>;

/// The whole graph as a PROV-JSON document.
#[must_use]
pub fn render(graph: &Graph) -> String {
    let mut agents = Section::new();
    let mut entities = Section::new();
    let mut activities = Section::new();
    let mut relations: BTreeMap<&str, Section> = BTreeMap::new();
    let mut relate = |kind, attributes: &[(&str, String)]| {
        let members = relations.entry(kind).or_default();
        let id = format!("_:{kind}{:08}", members.len() + 1);
        members.insert(id, object(attributes));
    };
    let mut agent = |owner: Owner| {
        let id = format!("tidemill:user-{}", owner.uid);
        let person = "{\"$\": \"prov:Person\", \"type\": \"prov:QUALIFIED_NAME\"}".to_owned();
        let uid = number(u64::from(owner.uid), "xsd:unsignedInt");
        agents.insert(
            id.clone(),
            object(&[("prov:type", person), ("tidemill:uid", uid)]),
        );
        string(&id)
    };
    for version in graph.versions() {
        entities.insert(entity_id(version), entity(version));
        if let Some(owner) = author(graph, version) {
            let attributes = [
                ("prov:entity", string(&entity_id(version))),
                ("prov:agent", agent(owner)),
            ];
            relate("wasAttributedTo", &attributes);
        }
    }
    for record in graph.records() {
        let id = format!("tidemill:task-{}", record.task);
        activities.insert(id.clone(), activity(record));
        if !record.hidden {
            relate(
                "wasAssociatedWith",
                &[
                    ("prov:activity", string(&id)),
                    ("prov:agent", agent(record.owner)),
                ],
            );
        }
        let edge = |name: &str, object| {
            [
                ("prov:activity", string(&id)),
                ("prov:entity", string(&format!("tidemill:object-{object}"))),
                ("prov:role", string(name)),
            ]
        };
        for (name, object) in &record.inputs {
            relate("used", &edge(name, object));
        }
        for (name, object) in &record.outputs {
            relate("wasGeneratedBy", &edge(name, object));
        }
    }
    entities.extend(left_out(graph));
    let prefix = Section::from([("tidemill".to_owned(), string("urn:tidemill:"))]);
    let mut sections = vec![
        ("prefix", prefix),
        ("entity", entities),
        ("activity", activities),
    ];
    sections.push(("agent", agents));
    sections.extend(relations);
    document(&sections)
}

/// Who a version is attributed to, if that may be shown.
fn author(graph: &Graph, version: &Version) -> Option<Owner> {
    match version.writer {
        _ if version.hidden => None,
        Writer::Client(owner) => Some(owner),
        Writer::Task(_) => {
            let maker = graph.maker(version.object);
            Some(maker.filter(|record| !record.hidden)?.owner)
        }
    }
}

/// An entity that stands for all that was left out.
fn left_out(graph: &Graph) -> Option<(String, String)> {
    let note = object(&[("prov:label", string(graph.cut.as_ref()?))]);
    Some(("tidemill:left-out".to_owned(), note))
}

fn document(sections: &[(&str, Section)]) -> String {
    let mut out = String::from("{");
    for (index, (name, members)) in sections
        .iter()
        .filter(|(_, members)| !members.is_empty())
        .enumerate()
    {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}\n  {}: {{", string(name));
        for (index, (id, attributes)) in members.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(out, "{comma}\n    {}: {attributes}", string(id));
        }
        out.push_str("\n  }");
    }
    out.push_str("\n}\n");
    out
}

fn entity_id(version: &Version) -> String {
    format!("tidemill:object-{}", version.object)
}

fn entity(version: &Version) -> String {
    if version.hidden {
        return object(&[("prov:label", string(version.shown_path()))]);
    }
    object(&[
        ("prov:label", string(version.shown_path())),
        ("tidemill:path", string(&version.path)),
        ("tidemill:size", number(version.size, "xsd:unsignedLong")),
        (
            "tidemill:inode",
            number(version.inode.0, "xsd:unsignedLong"),
        ),
        (
            "tidemill:element",
            number(u64::from(version.element.0), "xsd:unsignedInt"),
        ),
        (
            "tidemill:sealedAt",
            typed(&iso_time(version.sealed_at), "xsd:dateTime"),
        ),
    ])
}

fn activity(record: &Record) -> String {
    if record.hidden {
        return object(&[("prov:label", string(record.shown_name()))]);
    }
    let args: Vec<String> = record.args.iter().map(|arg| string(arg)).collect();
    let mut attributes = vec![
        ("prov:startTime", string(&iso_time(record.start))),
        ("prov:endTime", string(&iso_time(record.end))),
        ("prov:label", string(&record.name)),
        ("tidemill:job", number(record.job.0, "xsd:unsignedLong")),
        ("tidemill:jobName", string(&record.job_name)),
        ("tidemill:kernel", string(&record.kernel)),
        ("tidemill:kernelHash", string(&record.kernel_hash)),
        (
            "tidemill:element",
            number(u64::from(record.element.0), "xsd:unsignedInt"),
        ),
        (
            "tidemill:movedBytes",
            number(record.moved_bytes, "xsd:unsignedLong"),
        ),
        (
            "tidemill:readBytes",
            number(record.read_bytes, "xsd:unsignedLong"),
        ),
        (
            "tidemill:writtenBytes",
            number(record.written_bytes, "xsd:unsignedLong"),
        ),
        ("tidemill:exit", typed(&record.exit.to_string(), "xsd:int")),
    ];
    // An array is a set of values in PROV-JSON, so that the order of arguments needs one string.
    if !args.is_empty() {
        attributes.push(("tidemill:args", string(&format!("[{}]", args.join(", ")))));
    }
    if let Some(task) = record.reused {
        attributes.push(("tidemill:reusedTask", number(task.0, "xsd:unsignedLong")));
    }
    object(&attributes)
}

fn object(attributes: &[(&str, String)]) -> String {
    let members: Vec<String> = attributes
        .iter()
        .map(|(name, value)| format!("{}: {value}", string(name)))
        .collect();
    format!("{{{}}}", members.join(", "))
}

/// A literal with its type, as text: 64-bit numbers do not survive readers that know only doubles.
fn typed(value: &str, kind: &str) -> String {
    format!("{{\"$\": {}, \"type\": {}}}", string(value), string(kind))
}

fn number(value: u64, kind: &str) -> String {
    typed(&value.to_string(), kind)
}

/// A JSON string.
fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::mosaic;
    use super::*;

    #[test]
    fn versions_runs_and_users_are_entities_activities_and_agents() {
        let text = render(&mosaic());
        for section in [
            "prefix",
            "entity",
            "activity",
            "agent",
            "used",
            "wasGeneratedBy",
            "wasAttributedTo",
            "wasAssociatedWith",
        ] {
            assert_eq!(
                text.matches(&format!("\n  \"{section}\": {{")).count(),
                1,
                "{section}\n{text}"
            );
        }
        assert_eq!(text.matches("\"_:used").count(), 5);
        assert_eq!(text.matches("\"_:wasGeneratedBy").count(), 4);
        assert_eq!(text.matches("\"_:wasAttributedTo").count(), 6);
        assert!(text.contains(
            "{\"prov:activity\": \"tidemill:task-13\", \"prov:entity\": \"tidemill:object-3\", \"prov:role\": \"o3\"}"
        ));
        assert!(text.contains("\"prov:startTime\": \"2023-11-14T22:13:20.000Z\""));
    }

    #[test]
    fn text_is_escaped_as_json() {
        assert_eq!(string("a\"b\\c\n\u{1}é"), "\"a\\\"b\\\\c\\u000a\\u0001é\"");
    }

    #[test]
    fn an_empty_graph_is_a_document_with_a_prefix_only() {
        assert_eq!(
            render(&Graph::default()),
            "{\n  \"prefix\": {\n    \"tidemill\": \"urn:tidemill:\"\n  }\n}\n"
        );
    }
}
