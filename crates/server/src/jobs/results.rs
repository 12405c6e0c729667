//! Cached results: the outputs of a task are reused for a task of the same user with the same kernel, arguments and inputs.
//!
//! Two inputs are equal if both are the same object, which never changes, or if both are outputs that reuse one result: the table `same`
//! has their first object. If a workflow is submitted again, its tasks are therefore answered from cached results without reading a byte,
//! and every task that runs again creates new objects.
//!
//! If a run of a task costs clearly more than reading its data, its node hashes the data that the task has read. The table `content` has
//! the hash by first object, so an object with the same bytes also gets the same first object once the object was hashed. For an object
//! without a hash, the server offers the newest result of the same shape: equal except for the objects of the data, whose sizes are equal.
//! The node may use that result only if the new data has the expected hashes.
//!
//! The key of a result has only the name of a built-in kernel or a program. The node that is offered a result compares the hash of the code
//! that the node would run with the hash of the code that made the result. If the hashes differ, the node runs the task. If a task reads
//! only some bytes of an input, the selection of these bytes is part of the key. Equal ranges of equal files are equal inputs. Parts of
//! files are not equal inputs, since the files may be striped differently. Neither ranges nor parts are recognised by a hash, because a
//! hash belongs to a whole file.
//!
//! A task that reads only its code is never cached, since its output must depend on other sources.

use std::collections::HashMap;
use tidemill_meta::jobs::outputs::Publishing;
use tidemill_meta::jobs::results::{
    self, CachedTask, ResultKey, ResultSearch, content, first, put_content, put_first,
};
use tidemill_meta::jobs::{data, spec};
use tidemill_meta::placement::{corruption, replicas};
use tidemill_meta::{Connection, Fault, version};
use tidemill_model::directory::{is_directory, outputs_of};
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::{Analysis, Kernel, Label, LabelInput, Operation};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_wire::v1;

/// Properties that distinguish two cached results.
#[derive(Debug)]
struct ResultIdentity<'a> {
    uid: u32,
    kernel: &'a Kernel,
    args: &'a [String],
    stdin: Option<&'a str>,
    stdout: Option<&'a str>,
    runtime_environment: &'a RuntimeEnvironment,
    inputs: Vec<InputRead<'a>>,
    outputs: Vec<&'a str>,
}

/// One input that a task read.
#[derive(Debug)]
struct InputRead<'a> {
    name: &'a str,
    /// First object with the input's content.
    first: u64,
    /// Size of the input in bytes; `None` if unknown.
    size: Option<u64>,
    selection: &'a Selection,
}

impl ResultIdentity<'_> {
    /// Returns the inputs that are data, not code.
    fn data(&self) -> impl Iterator<Item = &InputRead<'_>> {
        let data = self.inputs.iter();
        data.filter(|input| !self.kernel.is_in(input.name))
    }

    /// Returns the key of the result; `None` if the task reads only code.
    fn key(&self) -> Option<ResultKey> {
        self.digest(|input| Some(input.first))
    }

    /// Returns the result's key with the sizes of data in place of objects; `None` if the task reads only code or a size is unknown.
    fn shape(&self) -> Option<ResultKey> {
        // Code and selections of bytes are only identified by their objects.
        let is_fixed =
            |input: &InputRead<'_>| self.kernel.is_in(input.name) || !input.selection.is_whole();
        self.digest(|input| Some(input.first).filter(|_| is_fixed(input)).or(input.size))
    }

    fn digest(&self, of: impl Fn(&InputRead<'_>) -> Option<u64>) -> Option<ResultKey> {
        self.data().next()?;
        let mut key = Digest::default();
        key.number(u64::from(self.uid));
        key.kernel(self.kernel);
        key.texts(self.args.iter().map(String::as_str));
        key.texts(self.stdin);
        key.texts(self.stdout);
        key.number(self.inputs.len() as u64);
        for input in &self.inputs {
            key.text(input.name);
            key.number(of(input)?);
        }
        key.texts(self.outputs.iter().copied());
        key.runtime_environment(self.runtime_environment);
        let whole = key.0.finalize();
        if self.inputs.iter().all(|input| input.selection.is_whole()) {
            return Some(whole.into());
        }
        // No user has this number, so the list differs from every other list of values.
        let mut key = Digest::default();
        key.number(u64::MAX);
        key.0.update(whole.as_bytes());
        for input in &self.inputs {
            key.text(&input.selection.to_string());
        }
        Some(key.0.finalize().into())
    }
}

/// Hash of a list of values; two different lists never have equal encodings.
#[derive(Default)]
struct Digest(blake3::Hasher);

impl Digest {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        let texts: Vec<_> = texts.into_iter().collect();
        self.number(texts.len() as u64);
        texts.into_iter().for_each(|text| self.text(text));
    }

    /// Adds the runtime environment to the hash. The default environment adds nothing.
    fn runtime_environment(&mut self, runtime_environment: &RuntimeEnvironment) {
        if runtime_environment.is_empty() {
            return;
        }
        let RuntimeEnvironment {
            environment,
            path,
            directories,
        } = runtime_environment;
        self.texts(environment.keys().map(String::as_str));
        self.texts(environment.values().map(String::as_str));
        self.texts(path.iter().map(String::as_str));
        self.texts(directories.iter().map(String::as_str));
    }

    fn kernel(&mut self, kernel: &Kernel) {
        self.text(spec::kind(kernel));
        match kernel {
            Kernel::Pipeline(pipeline) => {
                self.number(pipeline.stages.len() as u64);
                for stage in &pipeline.stages {
                    self.kernel(&stage.kernel);
                    self.texts(stage.args.iter().map(String::as_str));
                }
            }
            single => self.text(single.name()),
        }
    }
}

/// Facts about outputs of labels that are sent in one message, which the database does not have yet.
#[derive(Debug, Default)]
pub(super) struct AssumedOutputs {
    objects: HashMap<u64, AssumedOutput>,
}

/// Facts about one output object that are not in the database yet.
#[derive(Debug)]
struct AssumedOutput {
    /// First object with the content of the object.
    first: u64,
    /// Size of the object in bytes, if the label that reads the object does not have the correct size.
    size: Option<u64>,
    /// Label that must be answered from the cache for these facts to be true.
    condition: Option<LabelId>,
}

/// Returns the cached result of a label, if the nodes in `up` have its outputs. Adds the resulting facts about the label's outputs to
/// `presumed`.
pub(super) fn recall(
    db: &Connection,
    label: &Label,
    presumed: &mut AssumedOutputs,
    up: &dyn Fn(NodeId) -> bool,
) -> Result<Option<v1::CachedResult>, Fault> {
    let Operation::Analyse(analysis) = &label.operation else {
        return Ok(None);
    };
    // Such a task may read further inputs, which are unknown.
    if analysis.runtime_environment.reads_all() || analysis.runtime_environment.is_ranked() {
        return Ok(None);
    }
    let mut if_reused = Vec::new();
    let mut inputs = Vec::with_capacity(analysis.inputs.len());
    for input in &analysis.inputs {
        let known = presumed.objects.get(&input.object.0);
        // Equal bytes in another file may belong to other parts of that file.
        let known = known.filter(|_| input.selection.of_part().is_none());
        if_reused.extend(known.and_then(|known| known.condition).map(|label| label.0));
        inputs.push(InputRead {
            name: &input.name,
            first: known.map_or_else(|| first_of(db, input), |known| Ok(known.first))?,
            size: known.and_then(|known| known.size).or(Some(input.size)),
            selection: &input.selection,
        });
    }
    let Some(found) = find(db, &of_label(label, analysis, inputs), up)? else {
        return Ok(None);
    };
    // A label can't know the content of a directory before the directory exists.
    let files = analysis
        .outputs
        .iter()
        .filter(|output| !is_directory(&output.name));
    let all = found.outputs.iter().zip(&found.owners);
    let all = all.filter(|(_, owner)| !is_directory(&analysis.outputs[**owner].name));
    for (output, ((_, placed), _)) in files.zip(all) {
        let presumption = AssumedOutput {
            first: first(db, placed.object.0)?,
            size: Some(placed.size),
            condition: Some(label.id),
        };
        presumed.objects.insert(output.object.0, presumption);
    }
    if_reused.sort_unstable();
    if_reused.dedup();
    let outputs = found.outputs.into_iter().map(|(name, placed)| v1::Input {
        name,
        object: placed.object.0,
        node: placed.node.0,
        size: placed.size,
        ..v1::Input::default()
    });
    Ok(Some(v1::CachedResult {
        task: found.result.task.0,
        kernel_hash: found.result.kernel_hash,
        outputs: outputs.collect(),
        if_reused,
        contents: found.contents,
    }))
}

fn of_label<'a>(
    label: &Label,
    analysis: &'a Analysis,
    inputs: Vec<InputRead<'a>>,
) -> ResultIdentity<'a> {
    ResultIdentity {
        uid: label.owner.uid,
        kernel: &analysis.kernel,
        args: &analysis.args,
        stdin: analysis.stdin.as_deref(),
        stdout: analysis.stdout.as_deref(),
        runtime_environment: &analysis.runtime_environment,
        inputs,
        outputs: analysis.outputs.iter().map(|o| o.name.as_str()).collect(),
    }
}

/// Returns the first object with the content of an input. An input that is a part of a file is always its own first object, because
/// other files may have other parts.
fn first_of(db: &Connection, input: &LabelInput) -> Result<u64, Fault> {
    match input.selection.of_part() {
        Some(_) => Ok(input.object.0),
        None => first(db, input.object.0),
    }
}

/// A cached result whose output files are available.
#[derive(Debug)]
struct AvailableResult {
    result: CachedTask,
    /// Output files of the result; `owners` has the index of the task's output to which each file belongs.
    outputs: Vec<(String, Placed)>,
    owners: Vec<usize>,
    /// Hashes that the inputs must have; empty if all inputs are known to be equal.
    contents: Vec<String>,
}

/// Returns the cached result of a task with equal inputs, or with inputs that may turn out to be equal.
fn find(
    db: &Connection,
    identity: &ResultIdentity<'_>,
    up: &dyn Fn(NodeId) -> bool,
) -> Result<Option<AvailableResult>, Fault> {
    let searches = [
        identity.key().map(ResultSearch::Key),
        identity.shape().map(ResultSearch::Shape),
    ];
    for search in searches.into_iter().flatten() {
        for result in results::find(db, &search)? {
            let Some(contents) = missing(db, identity, &result)? else {
                continue;
            };
            let mut outputs = data::kept_outputs(db, result.task)?;
            for (_, placed) in &mut outputs {
                placed.node = readable(db, *placed, up)?;
            }
            let names = outputs.iter().map(|(name, _)| name.as_str());
            let owners = outputs_of(identity.outputs.iter().copied(), names);
            if let Some(owners) = owners
                && outputs.iter().all(|(_, placed)| up(placed.node))
            {
                return Ok(Some(AvailableResult {
                    result,
                    outputs,
                    owners,
                    contents,
                }));
            }
        }
    }
    Ok(None)
}

/// Returns a node that is up and from which an object can be read: the first replica's node, or a node with another replica.
fn readable(db: &Connection, placed: Placed, up: &dyn Fn(NodeId) -> bool) -> Result<NodeId, Fault> {
    if up(placed.node) && !corruption::is(db, placed.object.0, placed.node.0)? {
        return Ok(placed.node);
    }
    let holders = replicas::holders(db, placed.object.0)?.into_iter();
    let mut holders = holders.map(NodeId);
    Ok(holders.find(|&node| up(node)).unwrap_or(placed.node))
}

/// Returns the hashes that the inputs must have to equal the inputs of this result: an empty text for each input that is known to be equal,
/// and an empty list if all inputs are equal. Returns `None` if the inputs differ, or can't be compared.
fn missing(
    db: &Connection,
    identity: &ResultIdentity<'_>,
    result: &CachedTask,
) -> Result<Option<Vec<String>>, Fault> {
    let objects = data::input_objects(db, result.task)?;
    if objects.len() != identity.inputs.len() {
        return Ok(None);
    }
    let mut contents = Vec::with_capacity(objects.len());
    for (input, object) in identity.inputs.iter().zip(objects) {
        let theirs = match input.selection.of_part() {
            Some(_) => object,
            None => first(db, object)?,
        };
        if theirs == input.first {
            contents.push(String::new());
            continue;
        }
        if !input.selection.is_whole() {
            return Ok(None);
        }
        let Some(hash) = content(db, theirs)? else {
            return Ok(None);
        };
        match content(db, input.first)? {
            Some(known) if known == hash => contents.push(String::new()),
            Some(_) => return Ok(None),
            None => contents.push(hash),
        }
    }
    if contents.iter().all(String::is_empty) {
        contents.clear();
    }
    Ok(Some(contents))
}

/// Stores the result of a successful task in the cache, in the transaction that gives the outputs their names.
pub(super) fn cache(
    db: &Connection,
    publishing: &Publishing,
    label: &Label,
    analysis: &Analysis,
) -> Result<(), Fault> {
    let outputs = publishing.outputs.iter();
    for ((_, placed), of) in outputs.zip(&publishing.reused) {
        put_first(db, placed.object.0, first(db, of.0)?)?;
    }
    let hashed = analysis.inputs.iter().zip(&publishing.contents);
    let hashed = hashed.filter(|(input, hash)| !hash.is_empty() && input.selection.is_whole());
    for (input, hash) in hashed {
        put_content(db, input.object.0, hash)?;
    }
    let mut inputs = Vec::with_capacity(analysis.inputs.len());
    for input in &analysis.inputs {
        inputs.push(InputRead {
            name: &input.name,
            first: first_of(db, input)?,
            size: version::find(db, input.object.0)?.and_then(|version| version.size),
            selection: &input.selection,
        });
    }
    let identity = of_label(label, analysis, inputs);
    let Some(key) = identity.key() else {
        return Ok(());
    };
    let mut hashed = true;
    for input in identity.data() {
        hashed = hashed && content(db, input.first)?.is_some();
    }
    // Without all hashes the content can't be recognised, and no data is read to try.
    let shape = identity.shape().filter(|_| hashed);
    results::put(db, publishing.task, &key, shape.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_meta::jobs::data::TaskInput;
    use tidemill_meta::schema;
    use tidemill_model::id::{ObjectId, TaskId};

    const ONE: &str = "one";

    static NONE: RuntimeEnvironment = RuntimeEnvironment {
        environment: std::collections::BTreeMap::new(),
        path: Vec::new(),
        directories: Vec::new(),
    };

    fn database() -> (tempfile::TempDir, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let db = schema::open_writer(&directory.path().join("server.db")).unwrap();
        (directory, db)
    }

    fn put_inputs(db: &Connection, task: u64, inputs: &[(&str, u64)]) {
        for (seq, &(name, object)) in (0_u32..).zip(inputs) {
            let selection = "";
            let input = TaskInput {
                name,
                object,
                selection,
            };
            data::put_input(db, TaskId(task), seq, input).unwrap();
        }
    }

    fn cached(task: u64) -> CachedTask {
        CachedTask {
            task: TaskId(task),
            kernel_hash: String::new(),
        }
    }

    fn identity<'a>(kernel: &'a Kernel, code: u64, data: (u64, u64)) -> ResultIdentity<'a> {
        let read = |name, first, size| InputRead {
            name,
            first,
            size,
            selection: &Selection::WHOLE,
        };
        ResultIdentity {
            uid: 1,
            kernel,
            args: &[],
            stdin: None,
            stdout: None,
            runtime_environment: &NONE,
            inputs: vec![
                read("code", code, Some(1)),
                read("data", data.0, Some(data.1)),
            ],
            outputs: vec!["out"],
        }
    }

    #[test]
    fn result_shape_depends_on_sizes_of_data_and_objects_of_code() {
        let kernel = Kernel::Stored {
            input: "code".into(),
        };
        let of = |code, data| identity(&kernel, code, data);
        let one = of(1, (2, 100));
        assert_ne!(one.key(), of(1, (3, 100)).key());
        assert_eq!(one.shape(), of(1, (3, 100)).shape());
        assert_ne!(one.shape(), of(1, (2, 101)).shape());
        assert_ne!(one.shape(), of(4, (2, 100)).shape());
        let mut unknown = of(1, (2, 100));
        unknown.inputs[1].size = None;
        assert_eq!((unknown.shape(), unknown.key()), (None, one.key()));
        unknown.inputs.pop();
        assert_eq!(unknown.key(), None);
        let other = |change: fn(&mut RuntimeEnvironment)| {
            let mut runtime_environment = RuntimeEnvironment::default();
            change(&mut runtime_environment);
            let identity = ResultIdentity {
                runtime_environment: &runtime_environment,
                ..of(1, (2, 100))
            };
            identity.key()
        };
        let keys = [
            one.key(),
            other(|one| drop(one.environment.insert("A".into(), "1".into()))),
            other(|one| drop(one.environment.insert("A1".into(), String::new()))),
            other(|one| one.path.push("/sw".into())),
            other(|one| one.directories.push("/sw".into())),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(other(|_| {}), one.key());
    }

    /// A cached result of a part of a file is never offered for the whole file, nor for another part.
    #[test]
    fn result_key_includes_selection_of_input() {
        let kernel = Kernel::Builtin("max".into());
        let ranges = |part, end| Selection::ranges(part, &[0..end, 50..60]).unwrap();
        let selections = [
            Selection::WHOLE,
            Selection::part(0),
            Selection::part(1),
            ranges(None, 10),
            ranges(None, 11),
            ranges(Some(0), 10),
            ranges(Some(1), 10),
        ];
        let of = |selection, data| {
            let mut identity = identity(&kernel, 1, data);
            identity.inputs[1].selection = selection;
            (identity.key().unwrap(), identity.shape().unwrap())
        };
        let known: std::collections::BTreeSet<ResultKey> = selections
            .iter()
            .flat_map(|selection| {
                let (key, shape) = of(selection, (2, 100));
                [key, shape]
            })
            .collect();
        // Selections of bytes are only identified by the object: one key for each, and two for the whole.
        assert_eq!(known.len(), selections.len() + 1);
        for selection in &selections[1..] {
            assert_ne!(of(selection, (2, 100)).1, of(selection, (3, 100)).1);
        }
        let (_directory, db) = database();
        put_inputs(&db, 1, &[("code", 1), ("data", 2)]);
        put_content(&db, 2, ONE).unwrap();
        put_content(&db, 3, ONE).unwrap();
        let result = cached(1);
        let input = |selection: &Selection, object| LabelInput {
            name: "data".into(),
            object: ObjectId(object),
            node: NodeId(0),
            size: 100,
            selection: selection.clone(),
        };
        for selection in &selections {
            let offered = |object| {
                let first = first_of(&db, &input(selection, object)).unwrap();
                let mut identity = identity(&kernel, 1, (first, 100));
                identity.inputs[1].selection = selection;
                missing(&db, &identity, &result).unwrap().is_some()
            };
            assert!(offered(2), "{selection}: of the same version");
            // An equal file, perhaps striped differently.
            let same = selection.of_part().is_none();
            assert_eq!(offered(3), same, "{selection}");
            // A whole file may still turn out to have the same hash.
            assert_eq!(offered(4), selection.is_whole(), "{selection}");
        }
    }

    #[test]
    fn result_of_unknown_input_requires_matching_hash() {
        let (_directory, db) = database();
        let kernel = Kernel::Builtin("max".into());
        let result = cached(1);
        put_inputs(&db, 1, &[("code", 1), ("data", 2)]);
        let of = |data| missing(&db, &identity(&kernel, 1, (data, 7)), &result).unwrap();
        assert_eq!(of(2), Some(vec![]));
        assert_eq!(of(3), None);
        put_content(&db, 2, ONE).unwrap();
        assert_eq!(of(3), Some(vec![String::new(), ONE.into()]));
        put_content(&db, 3, "two").unwrap();
        assert_eq!(of(3), None);
        // The inputs are equal by hash, although the first objects differ.
        put_first(&db, 5, 4).unwrap();
        put_content(&db, 5, ONE).unwrap();
        assert_eq!(of(4), Some(vec![]));
        put_inputs(&db, 2, &[("data", 2)]);
        let short = cached(2);
        let other = missing(&db, &identity(&kernel, 1, (2, 7)), &short).unwrap();
        assert_eq!(other, None);
    }
}
