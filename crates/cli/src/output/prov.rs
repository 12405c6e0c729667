//! Lineage as PROV-JSON (W3C Member Submission, 24 April 2013): versions are entities, runs activities, users agents.
//! Names are in the namespace `urn:tidemill:`.

use serde_json::{Map, Value, json};
use tidemill_core::id::{ObjectId, TaskId};
use tidemill_core::label::Owner;
use tidemill_core::lineage::{Edge, Graph, Record, Version, Vertex, Writer, iso_time};

/// The whole graph as a PROV-JSON document. Sections without a member are left out.
pub(crate) fn document(graph: &Graph) -> Value {
    let mut sections = Sections::default();
    sections.add("prefix", "tidemill", json!("urn:tidemill:"));
    for version in graph.versions() {
        let entity = entity_id(version.object);
        sections.add("entity", &entity, self::entity(version));
        if let Some(owner) = author(graph, version) {
            let agent = sections.agent(owner);
            sections.relate(
                "wasAttributedTo",
                json!({ "prov:entity": entity, "prov:agent": agent }),
            );
        }
    }
    for record in graph.records() {
        let activity = activity_id(record.task);
        sections.add("activity", &activity, self::activity(record));
        if record.hidden {
            continue;
        }
        let agent = sections.agent(record.owner);
        sections.relate(
            "wasAssociatedWith",
            json!({ "prov:activity": activity, "prov:agent": agent }),
        );
    }
    for Edge { from, to, name } in graph.edges() {
        let (kind, run, object) = match (from, to) {
            (Vertex::Version(object), Vertex::Run(run)) => ("used", run, object),
            (Vertex::Run(run), Vertex::Version(object)) => ("wasGeneratedBy", run, object),
            (Vertex::Version(_), Vertex::Version(_)) | (Vertex::Run(_), Vertex::Run(_)) => continue,
        };
        let (activity, entity) = (activity_id(run), entity_id(object));
        sections.relate(
            kind,
            json!({ "prov:activity": activity, "prov:entity": entity, "prov:role": name }),
        );
    }
    if let Some(cut) = &graph.cut {
        // Stands for all that was left out.
        sections.add("entity", "tidemill:left-out", json!({ "prov:label": cut }));
    }
    Value::Object(sections.0)
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

/// The sections of a document: identifier to attributes in each.
#[derive(Default)]
struct Sections(Map<String, Value>);

impl Sections {
    fn section(&mut self, name: &str) -> &mut Value {
        self.0.entry(name).or_insert_with(|| json!({}))
    }

    fn add(&mut self, section: &str, id: &str, attributes: Value) {
        self.section(section)[id] = attributes;
    }

    /// A relation needs no name of its own, but an identifier.
    fn relate(&mut self, kind: &str, attributes: Value) {
        let count = self.section(kind).as_object().map_or(0, Map::len);
        self.add(kind, &format!("_:{kind}{:08}", count + 1), attributes);
    }

    fn agent(&mut self, owner: Owner) -> String {
        let id = format!("tidemill:user-{}", owner.uid);
        let person = json!({ "$": "prov:Person", "type": "prov:QUALIFIED_NAME" });
        let uid = typed(owner.uid, "xsd:unsignedInt");
        self.add(
            "agent",
            &id,
            json!({ "prov:type": person, "tidemill:uid": uid }),
        );
        id
    }
}

fn entity_id(object: ObjectId) -> String {
    format!("tidemill:object-{object}")
}

fn activity_id(task: TaskId) -> String {
    format!("tidemill:task-{task}")
}

fn entity(version: &Version) -> Value {
    if version.hidden {
        return json!({ "prov:label": version.shown_path() });
    }
    json!({
        "prov:label": version.shown_path(),
        "tidemill:path": version.path,
        "tidemill:size": typed(version.size, "xsd:unsignedLong"),
        "tidemill:inode": typed(version.inode.0, "xsd:unsignedLong"),
        "tidemill:element": typed(version.element.0, "xsd:unsignedInt"),
        "tidemill:sealedAt": typed(iso_time(version.sealed_at), "xsd:dateTime"),
    })
}

fn activity(record: &Record) -> Value {
    if record.hidden {
        return json!({ "prov:label": record.shown_name() });
    }
    if record.is_others() {
        return json!({
            "prov:startTime": iso_time(record.start),
            "prov:endTime": iso_time(record.end),
            "prov:label": record.shown_name(),
            "tidemill:kernel": record.kernel,
            "tidemill:element": typed(record.element.0, "xsd:unsignedInt"),
        });
    }
    let mut attributes = json!({
        "prov:startTime": iso_time(record.start),
        "prov:endTime": iso_time(record.end),
        "prov:label": record.name,
        "tidemill:job": typed(record.job.0, "xsd:unsignedLong"),
        "tidemill:jobName": record.job_name,
        "tidemill:kernel": record.kernel,
        "tidemill:kernelHash": record.kernel_hash,
        "tidemill:element": typed(record.element.0, "xsd:unsignedInt"),
        "tidemill:movedBytes": typed(record.moved_bytes, "xsd:unsignedLong"),
        "tidemill:readBytes": typed(record.read_bytes, "xsd:unsignedLong"),
        "tidemill:writtenBytes": typed(record.written_bytes, "xsd:unsignedLong"),
        "tidemill:exit": typed(record.exit, "xsd:int"),
    });
    // An array is a set of values in PROV-JSON, so that the order of arguments needs one string.
    if !record.args.is_empty() {
        attributes["tidemill:args"] = json!(json!(record.args).to_string());
    }
    if let Some(task) = record.reused {
        attributes["tidemill:reusedTask"] = typed(task.0, "xsd:unsignedLong");
    }
    attributes
}

/// A literal with its type, as text: 64-bit numbers do not survive readers that know only doubles.
fn typed(value: impl ToString, kind: &str) -> Value {
    json!({ "$": value.to_string(), "type": kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::id::{ElementId, Inode};
    use tidemill_core::time::Time;

    /// A file of a client, and what a task made of it.
    fn graph(hidden: bool) -> Graph {
        let (uid, gid) = (1000, 100);
        let mut graph = Graph::default();
        for (object, writer) in [
            (1, Writer::Client(Owner { uid, gid })),
            (2, Writer::Task(TaskId(13))),
        ] {
            graph.add_version(Version {
                object: ObjectId(object),
                path: format!("/{object}"),
                current_path: None,
                size: u64::MAX,
                inode: Inode(7),
                element: ElementId(3),
                writer,
                sealed_at: Time(1_700_000_000_000_000_000),
                hidden,
            });
        }
        graph.add_record(Record {
            task: TaskId(13),
            name: "sum".into(),
            args: vec!["a \"b\"".into()],
            owner: Owner { uid, gid },
            start: Time(1_700_000_000_000_000_000),
            inputs: vec![("in".into(), ObjectId(1))],
            outputs: vec![("out".into(), ObjectId(2))],
            hidden,
            ..Record::default()
        });
        graph
    }

    #[test]
    fn versions_runs_and_users_are_entities_activities_and_agents() {
        let document = document(&graph(false));
        assert_eq!(document["prefix"]["tidemill"], "urn:tidemill:");
        let members = |section: &str| document[section].as_object().unwrap().len();
        assert_eq!((members("entity"), members("activity")), (2, 1));
        assert_eq!((members("agent"), members("wasAttributedTo")), (1, 2));
        assert_eq!(
            document["used"]["_:used00000001"],
            json!({
                "prov:activity": "tidemill:task-13",
                "prov:entity": "tidemill:object-1",
                "prov:role": "in",
            })
        );
        let made = &document["wasGeneratedBy"]["_:wasGeneratedBy00000001"];
        assert_eq!(made["prov:entity"], "tidemill:object-2");
        let run = &document["activity"]["tidemill:task-13"];
        assert_eq!(run["prov:startTime"], "2023-11-14T22:13:20.000Z");
        assert_eq!(run["tidemill:args"], r#"["a \"b\""]"#);
        let size = &document["entity"]["tidemill:object-1"]["tidemill:size"];
        assert_eq!(size["$"], "18446744073709551615");
    }

    #[test]
    fn what_is_hidden_or_left_out_is_said_and_not_shown() {
        let mut graph = graph(true);
        graph.cut = Some("more than 2 versions".into());
        let document = document(&graph);
        assert_eq!(
            document["entity"]["tidemill:left-out"]["prov:label"],
            "more than 2 versions"
        );
        assert!(document.get("agent").is_none(), "{document:#}");
        let text = document.to_string();
        assert!(
            !text.contains("xsd:") && text.contains("not yours"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_graph_is_a_document_with_a_prefix_only() {
        let prefix = json!({ "prefix": { "tidemill": "urn:tidemill:" } });
        assert_eq!(document(&Graph::default()), prefix);
    }
}
