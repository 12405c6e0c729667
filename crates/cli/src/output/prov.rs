//! Lineage as PROV-JSON (W3C Member Submission, 24 April 2013): versions are entities, runs activities, users agents and the code of
//! kernels plans. Names are in the namespace `urn:tidemill:` and contain the cluster of their ids, so that documents of several clusters can
//! be combined.
//!
//! A task that did not run, because a result existed, is an activity that was informed by the activity that made the result: only that
//! one has times and a place. Every name in the document is described.

use serde_json::{Map, Value, json};
use tidemill_model::id::{ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_model::lineage::{Graph, LineageRecord, LineageVersion, VersionWriter, iso_time};

/// Maximum number of derivations of one run; `used` and `wasGeneratedBy` contain all relations.
const DERIVATIONS_MAX: usize = 10_000;

/// Returns the whole graph of a cluster as a PROV-JSON document. Empty sections are left out.
pub(crate) fn document(graph: &Graph, cluster: u64) -> Value {
    let mut document = Document {
        sections: Map::new(),
        cluster: format!("tidemill:{cluster:016x}"),
    };
    document.add("prefix", "tidemill", json!("urn:tidemill:"));
    for version in graph.versions() {
        document.version(graph, version);
    }
    for record in graph.records() {
        document.run(graph, record);
    }
    if let Some(cut) = &graph.cut {
        // This entity stands for everything that was left out.
        document.add("entity", "tidemill:left-out", json!({ "prov:label": cut }));
    }
    Value::Object(document.sections)
}

/// Returns the user to whom a version is attributed, if it may be shown.
fn author(graph: &Graph, version: &LineageVersion) -> Option<Owner> {
    match version.writer {
        _ if version.hidden => None,
        VersionWriter::Client(owner) => Some(owner),
        VersionWriter::Task(_) => {
            let maker = graph.maker(version.object);
            Some(maker.filter(|record| !record.hidden)?.owner)
        }
    }
}

/// Sections of a document: identifier to attributes in each.
struct Document {
    sections: Map<String, Value>,
    /// Prefix of the cluster's ids.
    cluster: String,
}

impl Document {
    fn section(&mut self, name: &str) -> &mut Value {
        self.sections.entry(name).or_insert_with(|| json!({}))
    }

    fn add(&mut self, section: &str, id: &str, attributes: Value) {
        self.section(section)[id] = attributes;
    }

    /// Describes a name, if there is no other description.
    fn mention(&mut self, section: &str, id: &str, label: &str) {
        let there = self.section(section).get(id).is_some();
        if !there {
            self.add(section, id, json!({ "prov:label": label }));
        }
    }

    /// Adds a relation. It needs an identifier, but no name of its own.
    fn relate(&mut self, kind: &str, attributes: Value) {
        let count = self.section(kind).as_object().map_or(0, Map::len);
        self.add(kind, &format!("_:{kind}{:08}", count + 1), attributes);
    }

    fn object(&self, object: ObjectId) -> String {
        format!("{}/object-{object}", self.cluster)
    }

    fn task(&self, task: TaskId) -> String {
        format!("{}/task-{task}", self.cluster)
    }

    /// Returns the entity of an object, which may have no other description.
    fn named(&mut self, object: ObjectId) -> String {
        let id = self.object(object);
        self.mention("entity", &id, &format!("object {object}"));
        id
    }

    fn agent(&mut self, owner: Owner) -> String {
        let id = format!("{}/user-{}", self.cluster, owner.uid);
        let person = json!({ "$": "prov:Person", "type": "prov:QUALIFIED_NAME" });
        let uid = typed(owner.uid, "xsd:unsignedInt");
        self.add(
            "agent",
            &id,
            json!({ "prov:type": person, "tidemill:uid": uid }),
        );
        id
    }

    /// Returns the plan for the code of a kernel.
    fn plan(&mut self, record: &LineageRecord) -> Option<String> {
        if record.kernel_hash.is_empty() {
            return None;
        }
        let id = format!("tidemill:kernel-{}", record.kernel_hash);
        let plan = json!({ "$": "prov:Plan", "type": "prov:QUALIFIED_NAME" });
        let attributes = json!({
            "prov:type": plan, "prov:label": record.kernel, "tidemill:blake3": record.kernel_hash,
        });
        self.add("entity", &id, attributes);
        Some(id)
    }

    fn version(&mut self, graph: &Graph, version: &LineageVersion) {
        let entity = self.object(version.object);
        self.add("entity", &entity, self::entity(version));
        if let Some(owner) = author(graph, version) {
            let agent = self.agent(owner);
            self.relate(
                "wasAttributedTo",
                json!({ "prov:entity": entity, "prov:agent": agent }),
            );
        }
        if let Some(first) = version.same_as {
            let first = self.named(first);
            self.relate(
                "alternateOf",
                json!({ "prov:alternate1": entity, "prov:alternate2": first }),
            );
        }
    }

    fn run(&mut self, graph: &Graph, record: &LineageRecord) {
        let activity = self.task(record.task);
        match record.reused.filter(|_| !record.hidden) {
            None => self.activity(&activity, record),
            Some(real) => {
                let real_activity = self.task(real);
                if graph.record(real).is_none() {
                    self.activity(&real_activity, record);
                }
                let attributes = json!({
                    "prov:label": record.shown_name(),
                    "prov:type": { "$": "tidemill:Reuse", "type": "prov:QUALIFIED_NAME" },
                });
                self.add("activity", &activity, attributes);
                self.relate(
                    "wasInformedBy",
                    json!({ "prov:informed": activity, "prov:informant": real_activity }),
                );
            }
        }
        for (name, object) in &record.inputs {
            let entity = self.named(*object);
            self.relate(
                "used",
                json!({ "prov:activity": activity, "prov:entity": entity, "prov:role": name }),
            );
        }
        for (name, object) in &record.outputs {
            let entity = self.named(*object);
            self.relate(
                "wasGeneratedBy",
                json!({ "prov:activity": activity, "prov:entity": entity, "prov:role": name }),
            );
        }
        let pairs = record.outputs.iter().flat_map(|(_, made)| {
            let read = record.inputs.iter();
            read.map(move |(_, read)| (*made, *read))
        });
        for (made, read) in pairs.take(DERIVATIONS_MAX) {
            let (made, read) = (self.object(made), self.object(read));
            self.relate(
                "wasDerivedFrom",
                json!({ "prov:generatedEntity": made, "prov:usedEntity": read, "prov:activity": activity }),
            );
        }
    }

    /// Adds a run, its user and its code.
    fn activity(&mut self, id: &str, record: &LineageRecord) {
        self.add("activity", id, self::activity(record));
        if record.hidden {
            return;
        }
        let agent = self.agent(record.owner);
        let mut association = json!({ "prov:activity": id, "prov:agent": agent });
        if let Some(plan) = self.plan(record) {
            association["prov:plan"] = json!(plan);
        }
        self.relate("wasAssociatedWith", association);
    }
}

fn entity(version: &LineageVersion) -> Value {
    if version.hidden {
        return json!({ "prov:label": version.shown_path() });
    }
    let mut attributes = json!({
        "prov:label": version.shown_path(),
        "tidemill:path": version.path,
        "tidemill:size": typed(version.size, "xsd:unsignedLong"),
        "tidemill:inode": typed(version.inode.0, "xsd:unsignedLong"),
        "tidemill:node": typed(version.node.0, "xsd:unsignedInt"),
        "tidemill:sealedAt": typed(iso_time(version.sealed_at), "xsd:dateTime"),
    });
    if let Some(hash) = &version.hash {
        attributes["tidemill:blake3"] = json!(hash);
    }
    // Attribute names are qualified, with characters that users' names may not contain, so these are values.
    let pairs = version.annotations.iter();
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !pairs.is_empty() {
        attributes["tidemill:annotation"] = json!(pairs);
    }
    attributes
}

fn activity(record: &LineageRecord) -> Value {
    if record.hidden {
        return json!({ "prov:label": record.shown_name() });
    }
    if record.is_others() {
        return json!({
            "prov:startTime": iso_time(record.start),
            "prov:endTime": iso_time(record.end),
            "prov:label": record.shown_name(),
            "tidemill:kernel": record.kernel,
            "tidemill:node": typed(record.node.0, "xsd:unsignedInt"),
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
        "tidemill:node": typed(record.node.0, "xsd:unsignedInt"),
        "tidemill:movedBytes": typed(record.transferred_bytes, "xsd:unsignedLong"),
        "tidemill:readBytes": typed(record.read_bytes, "xsd:unsignedLong"),
        "tidemill:writtenBytes": typed(record.written_bytes, "xsd:unsignedLong"),
        "tidemill:exit": typed(record.exit, "xsd:int"),
    });
    // An array is a set of values in PROV-JSON, so the order of arguments needs a single string.
    if !record.args.is_empty() {
        attributes["tidemill:args"] = json!(json!(record.args).to_string());
    }
    if !record.runtime_environment.is_empty() {
        attributes["tidemill:runtime_environment"] = json!(record.runtime_environment.to_string());
    }
    attributes
}

/// Returns a literal with its type, as text: readers that know only doubles would change 64-bit numbers.
fn typed(value: impl ToString, kind: &str) -> Value {
    json!({ "$": value.to_string(), "type": kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::{Inode, NodeId};
    use tidemill_model::time::Time;

    const CLUSTER: u64 = 0xabc;

    /// Returns a graph with a client's file and the output that a task made from it.
    fn graph(hidden: bool) -> Graph {
        let (uid, gid) = (1000, 100);
        let mut graph = Graph::default();
        for (object, writer) in [
            (1, VersionWriter::Client(Owner { uid, gid })),
            (2, VersionWriter::Task(TaskId(13))),
        ] {
            graph.add_version(LineageVersion {
                object: ObjectId(object),
                path: format!("/{object}"),
                current_path: None,
                size: u64::MAX,
                inode: Inode(7),
                node: NodeId(3),
                writer,
                sealed_at: Time(1_700_000_000_000_000_000),
                number: 1,
                superseded: false,
                dropped: None,
                annotations: Vec::new(),
                hash: None,
                same_as: None,
                hidden,
            });
        }
        graph.add_record(LineageRecord {
            task: TaskId(13),
            name: "sum".into(),
            kernel: "sum".into(),
            kernel_hash: "code".into(),
            args: vec!["a \"b\"".into()],
            owner: Owner { uid, gid },
            start: Time(1_700_000_000_000_000_000),
            inputs: vec![("in".into(), ObjectId(1))],
            outputs: vec![("out".into(), ObjectId(2))],
            hidden,
            ..LineageRecord::default()
        });
        graph
    }

    #[test]
    fn prov_maps_versions_runs_and_users_to_prov_types() {
        let document = document(&graph(false), CLUSTER);
        assert_eq!(document["prefix"]["tidemill"], "urn:tidemill:");
        let members = |section: &str| document[section].as_object().unwrap().len();
        assert_eq!((members("entity"), members("activity")), (3, 1));
        assert_eq!((members("agent"), members("wasAttributedTo")), (1, 2));
        assert_eq!(
            document["used"]["_:used00000001"],
            json!({
                "prov:activity": "tidemill:0000000000000abc/task-13",
                "prov:entity": "tidemill:0000000000000abc/object-1",
                "prov:role": "in",
            })
        );
        let made = &document["wasGeneratedBy"]["_:wasGeneratedBy00000001"];
        assert_eq!(made["prov:entity"], "tidemill:0000000000000abc/object-2");
        let run = &document["activity"]["tidemill:0000000000000abc/task-13"];
        assert_eq!(run["prov:startTime"], "2023-11-14T22:13:20.000Z");
        assert_eq!(run["tidemill:args"], r#"["a \"b\""]"#);
        let size = &document["entity"]["tidemill:0000000000000abc/object-1"]["tidemill:size"];
        assert_eq!(size["$"], "18446744073709551615");
    }

    /// Returns all names that relations use, each with the section that must describe it.
    fn used(document: &Value) -> Vec<(&'static str, String)> {
        const SECTIONS: [(&str, &str); 11] = [
            ("prov:entity", "entity"),
            ("prov:activity", "activity"),
            ("prov:agent", "agent"),
            ("prov:plan", "entity"),
            ("prov:generatedEntity", "entity"),
            ("prov:usedEntity", "entity"),
            ("prov:informed", "activity"),
            ("prov:informant", "activity"),
            ("prov:alternate1", "entity"),
            ("prov:alternate2", "entity"),
            ("prov:trigger", "entity"),
        ];
        let sections = document.as_object().unwrap().values();
        let relations = sections.flat_map(|section| section.as_object().unwrap().values());
        let mut used = Vec::new();
        for relation in relations {
            for (key, section) in SECTIONS {
                if let Some(name) = relation.get(key) {
                    used.push((section, name.as_str().unwrap().to_owned()));
                }
            }
        }
        used
    }

    #[test]
    fn prov_describes_every_reference_and_lists_derivations() {
        let mut graph = graph(false);
        let mut again = graph.record(TaskId(13)).unwrap().clone();
        // Only the ids of its inputs and outputs are known.
        (again.task, again.reused) = (TaskId(20), Some(TaskId(5)));
        again.inputs[0].1 = ObjectId(70);
        again.outputs[0].1 = ObjectId(71);
        graph.add_record(again.clone());
        (again.task, again.reused) = (TaskId(21), Some(TaskId(13)));
        graph.add_record(again);
        let mut copy = graph.version(ObjectId(2)).unwrap().clone();
        copy.same_as = Some(ObjectId(72));
        copy.hash = Some("cafe".into());
        copy.annotations = vec![("center".into(), "UChicago".into())];
        graph.add_version(copy);
        let document = document(&graph, CLUSTER);
        let used = used(&document);
        assert!(used.len() > 20, "{document:#}");
        for (section, name) in used {
            assert!(document[section].get(&name).is_some(), "{section} {name}");
            let global = name.starts_with("tidemill:kernel-");
            assert!(
                global || name.starts_with("tidemill:0000000000000abc/"),
                "{name}"
            );
        }
        assert_eq!(document["wasDerivedFrom"].as_object().unwrap().len(), 3);
        let entity = &document["entity"]["tidemill:0000000000000abc/object-2"];
        assert_eq!(entity["tidemill:blake3"], "cafe");
        assert_eq!(entity["tidemill:annotation"], json!(["center=UChicago"]));
        // A task that did not run has no time; the task that made its result has.
        let activity =
            |task: &str| &document["activity"][format!("tidemill:0000000000000abc/task-{task}")];
        for (task, ran) in [("5", true), ("13", true), ("20", false), ("21", false)] {
            assert_eq!(
                activity(task).get("prov:startTime").is_some(),
                ran,
                "{task}"
            );
        }
        assert_eq!(document["wasInformedBy"].as_object().unwrap().len(), 2);
    }

    #[test]
    fn prov_reports_hidden_and_omitted_parts() {
        let mut graph = graph(true);
        graph.cut = Some("more than 2 versions".into());
        let document = document(&graph, CLUSTER);
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
    fn prov_of_empty_graph_has_only_a_prefix() {
        let prefix = json!({ "prefix": { "tidemill": "urn:tidemill:" } });
        assert_eq!(document(&Graph::default(), CLUSTER), prefix);
    }
}
