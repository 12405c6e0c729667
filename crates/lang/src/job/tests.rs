//! Tests of jobs: the paper's listing, every error word by word, and properties. The properties compare the graph with a naive reference
//! and the order with the dependencies, and check that no script causes a panic.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{JobSpec, Origin};
use tidemill_model::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Kernel, Owner};
use tidemill_model::layout::{Layout, Part, Selection, StripedLayout, UNIT_GRAIN};
use tidemill_model::object::Placed;
use tidemill_model::resources::{NodeOffer, Offers};
use tidemill_model::runtime_environment;

const LISTING_1: &str = include_str!("../script/listing1.conf");

fn parse(text: &str) -> Result<Job, JobErrors> {
    Job::parse("job.conf", text.as_bytes())
}

fn with_tasks(tasks: &str) -> String {
    format!("name = \"j\"; workdir = \"/w\";\ntasks = (\n{tasks}\n);")
}

fn errors(text: &str) -> Vec<String> {
    let report = parse(text).unwrap_err();
    report.to_string().lines().map(str::to_owned).collect()
}

/// Returns the one error of a job with these tasks, which begin on line 3.
fn task_error(tasks: &str) -> String {
    let all = errors(&with_tasks(tasks));
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].strip_prefix("job.conf:").unwrap().to_owned()
}

/// Cluster with a list of files and kernels.
#[derive(Default)]
struct JobCluster {
    files: BTreeMap<&'static str, PathLookup>,
    /// Files in directories of kernels that may be trusted.
    own: BTreeMap<u32, Vec<&'static str>>,
    places: Vec<NodeOffer>,
}

/// Returns nodes 0 to 3 with 4 cores each; the last has two GPUs and no program.
fn places() -> Vec<NodeOffer> {
    let place = |node| NodeOffer {
        node: NodeId(node),
        server_cores: false,
        offers: Offers {
            cores: 4,
            memory_bytes: 8 << 30,
            named: (node == 3)
                .then(|| ("gpu".to_owned(), 2))
                .into_iter()
                .collect(),
        },
        programs: Some(
            "sort max /usr/bin/awk /sw/bin/max2 /sw/bin/sort /sw/bin/ /sw/"
                .split(' ')
                .filter(|_| node < 3)
                .map(str::to_owned)
                .collect(),
        ),
    };
    (0..4).map(place).collect()
}

impl JobCluster {
    fn with(files: &[(&'static str, PathLookup)]) -> Self {
        Self {
            files: files.iter().copied().collect(),
            own: BTreeMap::new(),
            places: places(),
        }
    }
}

fn file(object: u64, executable: bool) -> PathLookup {
    let placed = Placed {
        object: ObjectId(object),
        node: NodeId(0),
        size: 10,
    };
    PathLookup::Sealed(ResolvedFile {
        inode: Inode(object),
        placed,
        writable: object != 1,
        executable,
    })
}

impl Outside for JobCluster {
    fn look(&self, path: &str) -> PathLookup {
        let inside = format!("{path}/");
        let directory = self.files.keys().any(|file| file.starts_with(&inside));
        let otherwise = if directory {
            PathLookup::Directory
        } else {
            PathLookup::Nothing
        };
        self.files.get(path).copied().unwrap_or(otherwise)
    }
    fn layout(&self, placed: Placed) -> Layout {
        let part = |object: u64, size| Part::on(ObjectId(object), size, NodeId(0));
        match placed.object.0 {
            7 => Layout::Striped(StripedLayout {
                unit: 4096,
                size: placed.size,
                parts: vec![part(20, placed.size), part(21, 0)],
            }),
            _ => Layout::Whole(Part::on(placed.object, placed.size, placed.node)),
        }
    }
    fn beside(&self, path: &str) -> Vec<String> {
        let (directory, _) = path.rsplit_once('/').unwrap();
        let parts = self.files.keys().filter_map(|file| file.rsplit_once('/'));
        let siblings = parts.filter(|(above, _)| *above == directory);
        siblings.map(|(_, name)| name.to_owned()).collect()
    }
    fn own_kernels(&self, uid: u32) -> Vec<String> {
        let files = self.own.get(&uid).into_iter().flatten();
        files.map(|file| (*file).to_owned()).collect()
    }
    fn is_builtin(&self, name: &str) -> bool {
        matches!(name, "mean" | "max")
    }
    fn refuses(&self, name: &str, args: &[String]) -> Option<String> {
        let strange = args.iter().find(|arg| !arg.contains('='))?;
        Some(format!("{name} does not know the argument {strange:?}"))
    }
    fn places(&self) -> &[NodeOffer] {
        &self.places
    }
}

#[derive(Default)]
struct Counter(u64);

impl JobIds for Counter {
    fn task(&mut self) -> TaskId {
        self.0 += 1;
        TaskId(self.0)
    }
    fn inodes(&mut self, count: u64) -> Inode {
        self.0 += count;
        Inode(self.0 - count + 1)
    }
}

/// Returns the errors of a script, in itself or in this cluster.
fn errors_in(text: &str, cluster: &JobCluster) -> String {
    let found = parse(text).map(|_| resolve_in(text, cluster));
    found.and_then(|found| found).unwrap_err().to_string()
}

/// Returns the error of the one task "a" of a job, which begins on line 3.
fn refused_task(rest: &str) -> String {
    let text = with_tasks(&format!("{{ name = \"a\"; output = [ \"p\" ]; {rest} }}"));
    let report = errors_in(&text, &JobCluster::with(&[("/w/i", file(2, false))]));
    report.strip_prefix("job.conf:").unwrap().to_owned()
}

fn resolve_in(text: &str, cluster: &JobCluster) -> Result<JobSpec, JobErrors> {
    resolve_job(&parse(text).unwrap(), cluster)
}

fn resolve_job(job: &Job, cluster: &JobCluster) -> Result<JobSpec, JobErrors> {
    let owner = Owner {
        uid: 1000,
        gid: 1000,
    };
    resolve(job, JobId(7), owner, cluster, &mut Counter::default())
}

#[test]
fn instance_inputs_are_pinned_to_inspected_version() {
    let text = with_tasks(
        r#"{ name = "a"; per = "stripe-object"; kernel = "max"; input = [ "x.striped" ]; output = [ "o.{part}" ]; }"#,
    );
    let job = Job::read("job.conf", text.as_bytes(), &Directory(&["/w/x.striped"])).unwrap();
    assert_eq!(job.tasks[0].inputs[0].version, Some(ObjectId(7)));
    let errors = |object| {
        let cluster = JobCluster::with(&[("/w/x.striped", file(object, false))]);
        resolve_job(&job, &cluster).map_err(|errors| errors.to_string())
    };
    let newer = errors(8).unwrap_err();
    assert!(
        newer.contains("has changed during the submission"),
        "{newer}"
    );
    let same = errors(7);
    assert!(!same.is_err_and(|error| error.contains("has changed")));
}

#[test]
fn program_named_like_builtin_kernel_needs_its_type() {
    let reported = refused_task(r#"kernel = "max"; args = [ "-k", "2" ]; input = [ "i" ];"#);
    assert_eq!(
        reported,
        "3:42: task \"a\": \"max\" is a built-in kernel, and max does not know the argument \"-k\"; \
         for the program \"max\" of the nodes' hosts write type = \"program\""
    );
    let reported = refused_task(r#"kernel = "max"; input = [ "i" ]; stdin = "i"; stdout = "p";"#);
    assert_eq!(
        reported,
        "3:42: task \"a\": \"max\" is a built-in kernel, and it reads all inputs, but has no standard input: \
         leave \"stdin\" out; for the program \"max\" of the nodes' hosts write type = \"program\""
    );
    let reported = refused_task(r#"kernel = "max -n | mean"; input = [ "i" ];"#);
    assert!(
        reported.ends_with("write its path, such as /usr/bin/max"),
        "{reported}"
    );
    for plain in [
        r#"kernel = "max"; type = "builtin"; args = [ "-n" ]; input = [ "i" ];"#,
        r#"kernel = "max.so"; args = [ "-n" ]; input = [ "i" ];"#,
    ] {
        let reported = refused_task(plain);
        assert!(reported.ends_with("the argument \"-n\""), "{reported}");
    }
    let program =
        r#"kernel = "max"; type = "program"; args = [ "-k" ]; input = [ "i" ]; stdin = "i";"#;
    let text = with_tasks(&format!(
        "{{ name = \"a\"; output = [ \"p\" ]; {program} }}"
    ));
    let spec = resolve_in(&text, &JobCluster::with(&[("/w/i", file(2, false))])).unwrap();
    assert_eq!(spec.tasks[0].kernel, Kernel::Program("max".into()));
}

#[test]
fn listing_of_the_paper_gives_its_graph() {
    let job = parse(LISTING_1).unwrap();
    assert_eq!(
        (job.name.as_str(), job.workdir.as_str()),
        ("getmax", "/scratch/getmax")
    );
    assert!(!job.strict && job.policy.is_none());
    assert_eq!(job.dag.dependencies, [vec![], vec![], vec![0, 1]]);
    assert_eq!(job.dag.dependants, [vec![2], vec![2], vec![]]);
    assert_eq!(job.dag.order, [0, 1, 2]);
    let reduce = &job.tasks[2];
    assert_eq!(reduce.inputs[1].source, InputOrigin::Task(1, 0));
    assert_eq!(reduce.outputs[0].path, "/scratch/getmax/max.dat");
    assert_eq!(job.tasks[0].inputs[0].source, InputOrigin::Outside);
    assert_eq!(
        (reduce.retries, reduce.lifetime),
        (DEFAULT_RETRIES, Lifetime::Keep)
    );
}

#[test]
fn listing_of_the_paper_resolves_stored_and_builtin_kernels() {
    let cluster = JobCluster::with(&[
        ("/scratch/getmax/getmax.so", file(50, false)),
        ("/scratch/getmax/1.dat", file(51, false)),
    ]);
    let spec = resolve_in(LISTING_1, &cluster).unwrap();
    let [one, two, reduce] = &spec.tasks[..] else {
        panic!()
    };
    assert_eq!(
        one.kernel,
        Kernel::Native {
            input: "getmax.so".into()
        }
    );
    assert_eq!(reduce.kernel, Kernel::Builtin("mean".into()));
    let PathLookup::Sealed(data) = file(51, false) else {
        panic!()
    };
    let PathLookup::Sealed(code) = file(50, false) else {
        panic!()
    };
    let origins = |task: &tidemill_model::event::TaskSpec| -> Vec<_> {
        task.inputs
            .iter()
            .map(|input| (input.name.clone(), input.origin))
            .collect()
    };
    let code = ("getmax.so".to_owned(), Origin::File(code.placed));
    assert_eq!(
        origins(one),
        [("1.dat".into(), Origin::File(data.placed)), code.clone()]
    );
    assert_eq!(origins(two), [("2.dat".into(), Origin::Awaited), code]);
    assert_eq!(
        origins(reduce),
        [
            ("1.max".into(), Origin::Task(one.task, 0)),
            ("2.max".into(), Origin::Task(two.task, 0))
        ]
    );
}

#[test]
fn montage_example_has_the_papers_tasks_and_kernels() {
    let text = include_bytes!("../../../../examples/montage/montage.toml");
    let job = Job::parse("montage.toml", text).unwrap();
    let kernels: BTreeSet<&str> = job
        .tasks
        .iter()
        .map(|task| task.kernel.name.as_str())
        .collect();
    assert_eq!((job.tasks.len(), kernels.len()), (36, 8));
    let needed = |name: &str| {
        let index = job.tasks.iter().position(|task| task.name == name).unwrap();
        job.dag.dependencies[index].len()
    };
    assert_eq!(needed("project.isaac_s0_000"), 0);
    assert_eq!(needed("difference.000001.000002"), 2);
    assert_eq!(needed("concatenate-fits"), 11);
    assert_eq!(needed("model-background"), 1);
    assert_eq!(needed("background.isaac_s2_002"), 2);
    assert_eq!(needed("list-images"), 10);
    assert_eq!(needed("add"), 11);
    assert_eq!(job.dag.order.len(), 36);
}

#[test]
fn job_parses_every_setting() {
    let job = parse(
        r#"name = "all"; workdir = "/w/"; policy = "input-locality"; strict = true; retries = 5; submission-id = "a 1";
        lifetime = "used"; limits = { time = "5m"; memory = "1GiB"; };
        tasks = ( { name = "a"; kernel = "sort"; type = "program"; input = ( "i", "/else/where/k" );
          output = [ "o", "/w/sub/p" ]; args = ( "-k", 2 ); stdin = "./i"; streaming = [ "/else/where/k" ]; },
        );"#,
    )
    .unwrap();
    let task = &job.tasks[0];
    assert_eq!(
        (job.policy.as_deref(), job.strict),
        (Some("input-locality"), true)
    );
    assert_eq!(job.submission_id.as_deref(), Some("a 1"));
    assert_eq!((task.retries, task.lifetime), (5, Lifetime::Used));
    assert_eq!(
        (task.limits.time, task.limits.memory_bytes),
        (Span::from_secs(300), 1 << 30)
    );
    assert_eq!(task.limits.output_bytes, Limits::default().output_bytes);
    assert_eq!(task.args, ["-k", "2"]);
    assert_eq!(
        (task.stdin.as_deref(), task.stdout.as_deref()),
        (Some("i"), None)
    );
    assert_eq!(task.inputs[1].name, "k");
    assert_eq!(
        task.inputs
            .iter()
            .map(|input| input.streaming)
            .collect::<Vec<_>>(),
        [false, true]
    );
    assert_eq!(task.outputs[1].name, "sub/p");
    let job = parse(&with_tasks(
        r#"{ name = "a"; kernel = "k"; output = [ "o" ]; stdout = "/w/o"; node = 3; retries = 0;
             lifetime = "2h"; limits = { time = 7; output = 4096; } }"#,
    ))
    .unwrap();
    let task = &job.tasks[0];
    assert_eq!((task.node, task.retries), (Some(NodeId(3)), 0));
    assert_eq!(task.lifetime, Lifetime::After(Span::from_secs(7200)));
    assert_eq!(
        (task.limits.time, task.limits.output_bytes),
        (Span::from_secs(7), 4096)
    );
    assert_eq!(task.stdout.as_deref(), Some("o"));
}

/// Files of a cluster, by their full paths.
struct Directory<'a>(&'a [&'a str]);

impl DirectoryLookup for Directory<'_> {
    fn list(&self, directory: &str) -> Vec<ListedName> {
        let below = self
            .0
            .iter()
            .filter_map(|path| path.strip_prefix(directory)?.strip_prefix('/'));
        let names: BTreeSet<(String, bool)> = below
            .map(|rest| match rest.split_once('/') {
                Some((directory, _)) => (directory.to_owned(), true),
                None => (rest.to_owned(), false),
            })
            .collect();
        let listed = |(name, is_directory): (String, bool)| ListedName {
            is_text: !name.contains('\u{fffd}'),
            name,
            is_directory,
        };
        names.into_iter().map(listed).collect()
    }

    /// Files named `striped` or similar are striped over three nodes; all others are one object.
    fn made_of(&self, path: &str) -> Option<ExternalInput> {
        let size = 10 * UNIT_GRAIN + 5;
        let on = |index: u32| {
            let size = StripedLayout::part_size(UNIT_GRAIN, 3, size, index as usize);
            Part::on(ObjectId(u64::from(index)), size, NodeId(index))
        };
        let layout = match path.ends_with("striped") {
            true => Layout::Striped(StripedLayout {
                unit: UNIT_GRAIN,
                size,
                parts: (0..3).map(on).collect(),
            }),
            false => Layout::Whole(on(0)),
        };
        let object = ObjectId(7);
        let there = self.0.contains(&path);
        there.then_some(ExternalInput { object, layout })
    }

    /// Returns two bytes in each of the parts 0 and 2, whatever the mapper.
    fn mapped(
        &self,
        _: &str,
        _: &ExternalInput,
        mapping: &Mapping<'_>,
    ) -> Result<MapperResult, String> {
        let Mapping {
            mapper,
            per_part,
            kernels,
        } = *mapping;
        if mapper == "netcdf:none" {
            return Err("there is no variable \"none\"".to_owned());
        }
        let one = |number: usize, at: u64| {
            let part = u32::try_from(number).unwrap();
            let selection =
                Selection::ranges(Some(part), std::slice::from_ref(&(at..at + 2))).unwrap();
            let selection = selection.of_values(Some("{\"of\": \"records \"}")).unwrap();
            MappedSelection { number, selection }
        };
        let instances = match per_part {
            true => vec![one(0, 5), one(2, 7)],
            false => (0..11).map(|chunk| one(chunk, 5)).collect(),
        };
        let count = if per_part { 3 } else { 11 };
        let unplaced = mapper.starts_with("columns:csv");
        Ok(MapperResult {
            instances,
            count,
            unplaced,
            args: kernels_of(kernels),
        })
    }

    /// Returns two task instances of `/w/cube.zarr`, of two files and of one.
    fn mapped_directory(
        &self,
        path: &str,
        mapping: &Mapping<'_>,
    ) -> Result<Option<DirectoryMap>, String> {
        if path != "/w/cube.zarr" {
            return Ok(None);
        }
        if mapping.mapper != "zarr:tas" {
            return Err("a directory can be a Zarr only".to_owned());
        }
        let file = |number: u64, how: Option<&str>| MappedFile {
            below: format!("tas/c/{number}"),
            object: ObjectId(20 + number),
            selection: Selection::part(0).of_values(how).unwrap(),
        };
        let first = vec![file(0, Some("how")), file(1, None)];
        let instances = match mapping.per_part {
            true => vec![first, vec![file(2, Some("how"))]],
            false => (0..12)
                .map(|number| vec![file(number, Some("how"))])
                .collect(),
        };
        Ok(Some(DirectoryMap {
            instances,
            args: kernels_of(mapping.kernels),
        }))
    }

    fn folds(&self, kernel: &str, args: &[String]) -> bool {
        kernel == "mean" && !args.contains(&"dtype=text".to_owned())
    }
}

/// Returns the arguments that the mapper adds for `mean`, the only kernel of its task.
fn kernels_of(kernels: &[Vec<String>]) -> Vec<String> {
    match kernels {
        [one] if one[0] == "mean" => vec!["missing=-9".to_owned()],
        _ => Vec::new(),
    }
}

/// Returns the tasks of a job in a cluster with these files: names, inputs, outputs and arguments.
fn expanded(tasks: &str, files: &[&str]) -> Result<Vec<String>, String> {
    let text = with_tasks(tasks);
    let job = Job::read("job.conf", text.as_bytes(), &Directory(files));
    let job = job.map_err(|errors| errors.to_string())?;
    let described = job.tasks.iter().map(|task| {
        let inputs: Vec<_> = task
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        let outputs: Vec<_> = task
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        format!(
            "{}: {} -> {} ({})",
            task.name,
            inputs.join(" "),
            outputs.join(" "),
            task.args.join(" ")
        )
    });
    Ok(described.collect())
}

#[test]
fn pattern_matching_name_that_is_not_utf8_is_refused() {
    let files = ["/w/a.txt", "/w/b\u{fffd}.txt", "/w/c.dat", "/w/d\u{fffd}/x"];
    let task = |input: &str, rest: &str| {
        let input = format!("input = [ \"{input}\" ]; output = [ \"o\" ]; {rest}");
        format!("{{ name = \"t\"; kernel = \"k\"; {input} }}")
    };
    for pattern in ["*.txt", "*", "*/"] {
        let refused = expanded(&task(pattern, ""), &files).unwrap_err();
        assert!(refused.contains("\u{fffd}"), "{refused}");
        assert!(refused.contains("is not UTF-8"), "{refused}");
    }
    let each = task("{x}.txt", "foreach = \"{x}.txt\";").replace("\"t\"", "\"t-{x}\"");
    assert!(
        expanded(&each, &files)
            .unwrap_err()
            .contains("is not UTF-8")
    );
    expanded(&task("*.dat", ""), &files).unwrap();
}

#[test]
fn patterns_match_files_and_outputs_of_tasks_above() {
    let files = [
        "/w/raw/m31.fits",
        "/w/raw/m33.fits",
        "/w/raw/.hidden.fits",
        "/w/raw/log",
        "/w/raw/old/x.fits",
        "/w/flat",
    ];
    let tasks = r#"
        { name = "cal.{x}"; foreach = "raw/{x}.fits"; kernel = "k"; args = [ "-o", "{x}", "{other}" ];
          input = [ "raw/{x}.fits", "flat" ]; output = [ "cal/{x}.fits" ]; },
        { name = "sum"; kernel = "k"; args = [ "{inputs}" ]; input = [ "flat", "cal/*.fits" ]; output = [ "cal/sum.fits" ]; },
        { name = "all"; kernel = "k"; input = [ "raw/" ]; output = [ "n" ]; }"#;
    let expected = [
        "cal.m31: raw/m31.fits flat -> cal/m31.fits (-o m31 {other})",
        "cal.m33: raw/m33.fits flat -> cal/m33.fits (-o m33 {other})",
        "sum: flat cal/m31.fits cal/m33.fits -> cal/sum.fits (flat cal/m31.fits cal/m33.fits)",
        "all: raw/.hidden.fits raw/log raw/m31.fits raw/m33.fits raw/old/x.fits -> n ()",
    ];
    assert_eq!(expanded(tasks, &files).unwrap(), expected);
    let tasks = r#"{ name = "{band}{i}"; foreach = { band = [ "g", "r" ]; i = "08..10"; }; kernel = "k"; output = [ "{i}.{band}" ]; }"#;
    let expected = [
        "g08:  -> 08.g ()",
        "g09:  -> 09.g ()",
        "g10:  -> 10.g ()",
        "r08:  -> 08.r ()",
    ];
    let found = expanded(tasks, &[]).unwrap();
    assert_eq!(
        (&found[..4], found.len()),
        (&expected.map(str::to_owned)[..], 6)
    );
    let ten_thousand =
        r#"{ name = "t{i}"; foreach = { i = "1..10000"; }; kernel = "k"; output = [ "o{i}" ]; }"#;
    assert_eq!(expanded(ten_thousand, &[]).unwrap().len(), 10_000);
}

#[test]
fn output_directory_is_one_input_of_other_tasks() {
    let files = ["/w/raw/a.fits", "/w/raw/b.fits", "/w/old/x", "/w/in.zarr/0"];
    let tasks = r#"
        { name = "{x}"; foreach = "raw/{x}.fits"; kernel = "k"; output = [ "out/{x}.zarr/", "log.{x}" ]; },
        { name = "one"; kernel = "k"; args = [ "{inputs}" ]; input = [ "./out//a.zarr/" ]; output = [ "one/" ]; },
        { name = "all"; kernel = "k"; args = [ "{inputs}" ]; input = [ "out/*.zarr/", "*.zarr/" ]; output = [ "n" ]; },
        { name = "{y}.2"; foreach = "out/{y}.zarr/"; kernel = "k"; input = [ "out/{y}.zarr/" ]; output = [ "two.{y}" ]; },
        { name = "below"; kernel = "k"; input = [ "out/", "old/" ]; output = [ "m" ]; }"#;
    let expected = [
        "a:  -> out/a.zarr/ log.a ()",
        "b:  -> out/b.zarr/ log.b ()",
        "one: out/a.zarr/ -> one/ (out/a.zarr)",
        "all: out/a.zarr/ out/b.zarr/ in.zarr/0 -> n (out/a.zarr out/b.zarr in.zarr/0)",
        "a.2: out/a.zarr/ -> two.a ()",
        "b.2: out/b.zarr/ -> two.b ()",
        "below: out/a.zarr/ out/b.zarr/ old/x -> m ()",
    ];
    assert_eq!(expanded(tasks, &files).unwrap(), expected);
    let text = with_tasks(tasks);
    let job = Job::read("job.conf", text.as_bytes(), &Directory(&files)).unwrap();
    assert_eq!(job.tasks[3].inputs[1].source, InputOrigin::Task(1, 0));
    assert_eq!(job.tasks[3].inputs[1].path, "/w/out/b.zarr");
    assert_eq!(job.dag.dependencies[6], [0, 1]);
    let text = with_tasks(r#"{ name = "a"; kernel = "sort"; output = [ "out/a.zarr/", "f" ]; }"#);
    let spec = resolve_in(&text, &JobCluster::default());
    let outputs = &spec.unwrap().tasks[0].outputs;
    let directory = &outputs[0];
    assert_eq!(
        (directory.path.as_str(), directory.is_directory()),
        ("/w/out/a.zarr", true)
    );
    assert_eq!(directory.claimed().unwrap(), "/w/out/a.zarr/");
    // All files that the directory may contain have numbers of their own.
    assert_eq!(
        outputs[1].inode.0 - directory.inode.0,
        1 + directory::FILES_MAX
    );
}

#[test]
fn instances_expand_per_part_stripe_and_file() {
    let files = ["/w/striped", "/w/plain", "/w/raw/a.nc", "/w/raw/b.nc"];
    let tasks = r#"
        { name = "s"; per = "stripe-object"; kernel = "k"; args = [ "{part}" ]; input = [ "striped", "plain" ]; output = [ "s.{part}" ]; },
        { name = "c"; per = "stripe"; kernel = "k"; input = [ "striped" ]; output = [ "c/{stripe}" ]; },
        { name = "one"; per = "stripe"; kernel = "k"; input = [ "plain" ]; output = [ "one" ]; },
        { name = "{stem}"; per = "file"; kernel = "k"; input = [ "raw/*.nc" ]; output = [ "{name}.mean" ]; },
        { name = "same"; per = "stripe-object"; layout = "same"; kernel = "k"; input = [ "striped" ]; output = [ "x", "y" ]; },
        { name = "next"; per = "stripe-object"; layout = "same"; kernel = "k"; input = [ "y" ]; output = [ "z" ]; }"#;
    let text = with_tasks(tasks);
    let job = Job::read("job.conf", text.as_bytes(), &Directory(&files)).unwrap();
    let described = job.tasks.iter().map(|task| {
        let input =
            |input: &ScriptInput| format!("{} {} {:?}", input.name, input.selection, input.source);
        let inputs: Vec<String> = task.inputs.iter().map(input).collect();
        let outputs: Vec<&str> = task
            .outputs
            .iter()
            .map(|output| output.path.as_str())
            .collect();
        (
            task.name.as_str(),
            inputs.join("; "),
            outputs.join(" "),
            task.share,
        )
    });
    let described: Vec<_> = described.collect();
    let outside = |input: &str| format!("{input} Outside");
    let both = |part| format!("striped part {part} Outside; plain  Outside");
    for part in 0..3 {
        let name = ["s[0]", "s[1]", "s[2]"][part];
        let output = ["/w/s.0", "/w/s.1", "/w/s.2"][part].to_owned();
        assert_eq!(
            described[part],
            (name, both(part), output, TaskRole::Instance)
        );
        assert_eq!(job.tasks[part].args, [part.to_string()]);
        assert_eq!(job.tasks[part].inputs[0].version, Some(ObjectId(7)));
    }
    assert_eq!(described[3].1, outside("striped bytes 0-4095"));
    assert_eq!(described[13].1, outside("striped bytes 40960-40964"));
    assert_eq!(
        (described[3].0, described[13].2.as_str()),
        ("c[00]", "/w/c/10")
    );
    assert_eq!(
        described[14],
        (
            "one",
            outside("plain "),
            "/w/one".to_owned(),
            TaskRole::Instance
        )
    );
    assert_eq!(
        (described[15].0, described[16].2.as_str()),
        ("a", "/w/b.nc.mean")
    );
    let part = (
        "same[2]",
        outside("striped part 2"),
        "/w/x[2] /w/y[2]".to_owned(),
        TaskRole::Instance,
    );
    assert_eq!(described[19], part);
    let made = |output| (17..20).map(move |task| format!("Task({task}, {output})"));
    let all: Vec<String> = made(0).chain(made(1)).collect();
    assert_eq!((described[20].0, described[20].3), ("same", TaskRole::Join));
    for made in &all {
        assert!(described[20].1.contains(made), "{}", described[20].1);
    }
    assert_eq!(described[21].1, "y part 0 Task(20, 1)");
    assert_eq!(job.dag.dependencies[24], [20, 21, 22, 23]);
    // None of these settings can be written by hand.
    let by_hand = with_tasks(r#"{ name = "a"; kernel = "k"; output = [ "o" ]; " share" = 1; }"#);
    assert!(parse(&by_hand).is_err());
}

fn mapped(rest: &str) -> Result<Job, String> {
    let task =
        format!("{{ name = \"s\"; kernel = \"k\"; input = [ \"striped\", \"plain\" ]; {rest} }}");
    let job = Job::read(
        "job.conf",
        with_tasks(&task).as_bytes(),
        &Directory(&["/w/striped", "/w/plain"]),
    );
    job.map_err(|errors| errors.to_string())
}

#[test]
fn mapper_determines_instances_and_their_input_bytes() {
    let parts =
        mapped("per = \"stripe-object\"; variable = \"netcdf:tas\"; output = [ \"o.{part}\" ];")
            .unwrap();
    let names: Vec<_> = parts
        .tasks
        .iter()
        .map(|task| (task.name.as_str(), task.outputs[0].name.as_str()))
        .collect();
    assert_eq!(
        names,
        [("s[0]", "o.0"), ("s[1]", "o.2")],
        "one part has nothing of it"
    );
    let [input, other] = &parts.tasks[1].inputs[..] else {
        panic!()
    };
    assert_eq!(
        input.selection.to_string(),
        "part 2 bytes 7-8 values {\"of\": \"records \"}"
    );
    assert_eq!(
        (input.version, input.name.as_str()),
        (Some(ObjectId(7)), "striped")
    );
    assert!(other.selection.is_whole());
    let chunks =
        mapped("per = \"chunk\"; variable = \"netcdf:tas\"; output = [ \"o.{chunk}\" ];").unwrap();
    assert_eq!(
        (chunks.tasks.len(), chunks.tasks[3].outputs[0].name.as_str()),
        (11, "o.03")
    );
}

#[test]
fn builtin_kernels_get_format_args_from_mapper() {
    let args = |(input, mapper): (&str, &str), rest: &str, files: &[&str]| {
        let task = format!(
            "{{ name = \"s\"; kernel = \"mean\"; args = [ \"dtype=f32\" ]; input = [ \"{input}\" ]; per = \"stripe-object\"; variable = \"{mapper}\"; {rest} }}"
        );
        let job = Job::read("job.conf", with_tasks(&task).as_bytes(), &Directory(files)).unwrap();
        let args = job.tasks.into_iter().map(|task| task.args);
        args.collect::<Vec<Vec<String>>>()
    };
    let variable = ("striped", "netcdf:tas");
    for of in [variable, ("cube.zarr", "zarr:tas")] {
        // Each task instance, and the task that merges their results, has the arguments of the task instances.
        let found = args(of, "output = [ \"o\" ];", &["/w/striped"]);
        let begins = [PARTIAL, PARTIAL, MERGE];
        assert_eq!(found.len(), begins.len());
        for (found, begin) in found.iter().zip(begins) {
            assert_eq!(*found, [begin, "dtype=f32", "missing=-9"]);
        }
    }
    let each = "output = [ \"o.{part}\" ];";
    let found = args(variable, each, &["/w/striped"]);
    assert_eq!(found[1], ["dtype=f32", "missing=-9"]);
    // A program, or a file of the same name.
    let program = format!("type = \"program\"; {each}");
    assert_eq!(args(variable, &program, &["/w/striped"])[1], ["dtype=f32"]);
    assert_eq!(
        args(variable, each, &["/w/striped", "/w/mean"])[1],
        ["dtype=f32"]
    );
}

#[test]
fn mapper_in_directory_yields_its_files() {
    for given in [
        "\"cube.zarr\"",
        "\"cube.zarr/\"",
        "{ file = \"/w/cube.zarr\"; }",
    ] {
        let task = format!(
            "{{ name = \"s\"; kernel = \"k\"; args = [ \"{{inputs}}\" ]; input = ( {given}, \"plain\" ); per = \"stripe-object\"; variable = \"zarr:tas\"; stdin = \"cube.zarr\"; output = [ \"o.{{part}}\" ]; }}"
        );
        let files = Directory(&["/w/plain"]);
        let job = Job::read("job.conf", with_tasks(&task).as_bytes(), &files).unwrap();
        let described: Vec<_> = job.tasks[0]
            .inputs
            .iter()
            .map(|input| {
                (
                    input.name.as_str(),
                    input.path.as_str(),
                    input.version.map(|one| one.0),
                    input.selection.to_string(),
                )
            })
            .collect();
        assert_eq!(
            described,
            [
                (
                    "cube.zarr",
                    "/w/cube.zarr/tas/c/0",
                    Some(20),
                    "part 0 values how".to_owned()
                ),
                (
                    "cube.zarr[tas/c/1]",
                    "/w/cube.zarr/tas/c/1",
                    Some(21),
                    "part 0".to_owned()
                ),
                ("plain", "/w/plain", None, Selection::WHOLE.to_string()),
            ]
        );
        assert_eq!(
            job.tasks[0].args,
            ["cube.zarr", "plain"],
            "as if it were one file"
        );
        assert_eq!(job.tasks[0].stdin.as_deref(), Some("cube.zarr"));
        assert_eq!(
            (job.tasks.len(), job.tasks[1].outputs[0].name.as_str()),
            (2, "o.1")
        );
    }
}

#[test]
fn directory_without_mapped_data_is_refused() {
    let refused = |task: &str| {
        let job = Job::read("job.conf", with_tasks(task).as_bytes(), &Directory(&[]));
        job.map_err(|errors| errors.to_string()).unwrap_err()
    };
    let rest = "kernel = \"k\"; per = \"chunk\"; output = [ \"o.{chunk}\" ];";
    let other = refused(&format!(
        "{{ name = \"s\"; {rest} input = [ \"cube.zarr/\" ]; variable = \"hdf5:x\"; }}"
    ));
    assert!(other.contains("a directory can be a Zarr only"), "{other}");
    let none = refused(&format!(
        "{{ name = \"s\"; {rest} input = [ \"none.zarr/\" ]; variable = \"zarr:tas\"; }}"
    ));
    assert!(none.contains("none.zarr"), "{none}");
    let to_come = refused(&format!(
        "{{ name = \"m\"; kernel = \"k\"; output = [ \"made.zarr/\" ]; }}, {{ name = \"s\"; {rest} input = [ \"made.zarr/\" ]; variable = \"zarr:tas\"; }}"
    ));
    assert!(
        to_come.contains("must exist when the job is submitted"),
        "{to_come}"
    );
}

#[test]
fn record_stripes_include_their_halo() {
    let size = 10 * UNIT_GRAIN + 5;
    for (length, halo) in [
        (1, 3),
        (100, 2),
        (4096, 1),
        (5000, 1),
        (9000, 7),
        (50_000, 1),
    ] {
        let rest = format!(
            "per = \"stripe\"; records = {length}; halo = {halo}; args = [ \"{{before}}\", \"{{after}}\" ]; output = [ \"o.{{stripe}}\" ];"
        );
        let mut next = 0;
        for task in &mapped(&rest).unwrap().tasks {
            let ranges: Vec<_> = task.inputs[0].selection.byte_ranges().unwrap().collect();
            let halo_sizes = [0, 1].map(|at: usize| task.args[at].parse::<u64>().unwrap());
            assert_eq!(ranges.len(), 1);
            assert_eq!(halo_sizes[0], halo.min(next / length), "{length} {halo}");
            assert_eq!(
                ranges[0].start,
                next - halo_sizes[0] * length,
                "{length} {halo}"
            );
            let all = ranges[0].end.div_ceil(length);
            assert!(all * length == ranges[0].end || ranges[0].end == size);
            next = (all - halo_sizes[1]) * length;
            assert_eq!(
                halo_sizes[1],
                halo.min(size.div_ceil(length) - next / length)
            );
        }
        assert_eq!(
            next,
            size.next_multiple_of(length),
            "every record is one stripe's own"
        );
    }
    let refused =
        |rest: &str| mapped(&format!("{rest} output = [ \"o.{{stripe}}\" ];")).unwrap_err();
    assert!(refused("per = \"stripe\"; records = \"lines\"; halo = 1;").contains("\"halo\" is"));
    assert!(refused("per = \"stripe\"; records = 0; halo = 1;").contains("\"halo\" is"));
    // A fold would count some of the records twice.
    let fold = "{ name = \"f\"; kernel = \"mean\"; per = \"stripe\"; input = [ \"striped\" ]; output = [ \"o\" ]; halo = 1; }";
    let files = Directory(&["/w/striped"]);
    let read = |text: &str| Job::read("job.conf", with_tasks(text).as_bytes(), &files);
    assert!(read(fold).unwrap_err().to_string().contains("{stripe}"));
    assert!(read(&fold.replace("halo = 1;", "")).is_ok());
}

#[test]
fn invalid_mapper_settings_are_refused() {
    for (rest, problem) in [
        (
            "per = \"chunk\"; output = [ \"o\" ];",
            "per = \"chunk\" needs a variable",
        ),
        (
            "per = \"stripe\"; variable = \"netcdf:tas\"; output = [ \"o.{stripe}\" ];",
            "it needs per =",
        ),
        (
            "per = \"stripe-object\"; layout = \"same\"; variable = \"fits:0\"; output = [ \"o\" ];",
            "are for bytes",
        ),
        (
            "per = \"stripe-object\"; records = 8; variable = \"fits:0\"; output = [ \"o.{part}\" ];",
            "are for bytes",
        ),
        (
            "per = \"stripe-object\"; variable = \"netcdf:none\"; output = [ \"o.{part}\" ];",
            "there is no variable",
        ),
        (
            "per = \"chunk\"; variable = \"netcdf:tas\"; output = [ \"o\" ];",
            "all task instances would write",
        ),
        (
            "per = \"chunk\"; variable = 7; output = [ \"o.{chunk}\" ];",
            "it is \"netcdf:VARIABLE\"",
        ),
        ("variable = \"netcdf:tas\"; output = [ \"o\" ];", "variable"),
        (
            "type = \"builtin\"; per = \"stripe-object\"; variable = \"columns:csv,a\"; output = [ \"o\" ];",
            "all task instances would write",
        ),
    ] {
        let reported = mapped(rest).unwrap_err();
        assert!(reported.contains(problem), "{rest}: {reported}");
    }
}

fn reduced_by(rest: &str) -> Result<Job, String> {
    let task =
        format!("{{ name = \"s\"; input = [ \"striped\" ]; per = \"stripe-object\"; {rest} }}");
    let job = Job::read(
        "job.conf",
        with_tasks(&task).as_bytes(),
        &Directory(&["/w/striped"]),
    );
    job.map_err(|errors| errors.to_string())
}

#[test]
fn instances_merge_into_one_result() {
    let fold =
        reduced_by("kernel = \"mean\"; args = [ \"dtype=f4\" ]; output = [ \"o\" ];").unwrap();
    let reduced =
        reduced_by("kernel = \"k\"; output = [ \"o\" ]; reduce = \"sort -m {inputs} -u\";")
            .unwrap();
    for (job, begin, end) in [
        (&fold, vec![PARTIAL, "dtype=f4"], vec![MERGE, "dtype=f4"]),
        (&reduced, vec![], vec!["-m", "o[0]", "o[1]", "o[2]", "-u"]),
    ] {
        assert_eq!(job.tasks.len(), 4);
        for task in &job.tasks[..3] {
            assert_eq!(
                (&task.args, task.share),
                (
                    &begin.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>(),
                    TaskRole::Instance
                )
            );
            assert!(task.outputs[0].part);
        }
        let last = &job.tasks[3];
        assert_eq!(
            (
                last.name.as_str(),
                last.share,
                last.outputs[0].path.as_str()
            ),
            ("s", TaskRole::Merge, "/w/o")
        );
        assert_eq!(last.args, end);
        let made: Vec<_> = last.inputs.iter().map(|input| input.source).collect();
        assert_eq!(
            made,
            [
                InputOrigin::Task(0, 0),
                InputOrigin::Task(1, 0),
                InputOrigin::Task(2, 0)
            ]
        );
        assert!(!last.outputs[0].part);
    }
    assert_eq!(fold.tasks[3].kernel.kind, Some(KernelKind::Builtin));
    assert_eq!(reduced.tasks[3].kernel.name, "sort");
}

#[test]
fn invalid_merge_of_instances_is_refused() {
    for (rest, problem) in [
        (
            "kernel = \"mean\"; args = [ \"dtype=text\" ]; output = [ \"o\" ];",
            "all task instances would write",
        ),
        (
            "kernel = \"mean\"; type = \"program\"; output = [ \"o\" ];",
            "all task instances would write",
        ),
        (
            "kernel = \"k\"; output = [ \"o.{part}\" ]; reduce = \"cat\";",
            "it makes one output",
        ),
        (
            "kernel = \"k\"; output = [ \"o\", \"p\" ]; reduce = \"cat\";",
            "it makes one output",
        ),
        (
            "kernel = \"k\"; output = [ \"o\" ]; layout = \"same\"; reduce = \"cat\";",
            "can't be combined with",
        ),
        (
            "kernel = \"k\"; output = [ \"o\" ]; reduce = \"cat | wc\";",
            "give a kernel with its arguments",
        ),
        (
            "kernel = \"k\"; output = [ \"o\" ]; reduce = 3;",
            "give a kernel with its arguments",
        ),
    ] {
        let reported = reduced_by(rest).unwrap_err();
        assert!(reported.contains(problem), "{rest}: {reported}");
    }
}

#[test]
fn conflicting_output_directories_are_refused() {
    let rest = r#"{ name = "b"; kernel = "k"; output = [ "d/" ]; },
{ name = "a"; kernel = "k"; "#;
    let whole = |below: &str| {
        format!(
            "\"{below}\" is in \"/w/d/\", a directory that a task makes as a whole; read all of it, as \"/w/d/\", or write elsewhere"
        )
    };
    let both = "\"/w/d\" is a directory for one task and a file for another; write it with a slash at its end in both, or in neither";
    let cases = [
        ("output = [ \"d/x\" ];", whole("/w/d/x")),
        ("input = [ \"d/x\" ]; output = [ \"o\" ];", whole("/w/d/x")),
        ("input = [ \"d/*\" ]; output = [ \"o\" ];", whole("d/")),
        ("input = [ \"d/e/\" ]; output = [ \"o\" ];", whole("d/e/")),
        ("input = [ \"d\" ]; output = [ \"o\" ];", both.to_owned()),
        (
            "input = [ \"x\" ]; output = [ \"x/\" ];",
            "it reads its own output \"/w/x\"; write to another name".to_owned(),
        ),
        (
            "output = [ \"/\" ];",
            "\"/\" names a directory; tasks read and write files".to_owned(),
        ),
        (
            "output = [ \"./\" ];",
            "\".\" names a directory; tasks read and write files".to_owned(),
        ),
        (
            "output = [ \"/x/d/\" ];",
            "output \"/x/d\" is not below workdir \"/w\"".to_owned(),
        ),
        (
            "output = [ \"o\", \"o/\" ];",
            "\"/w/o\" is listed twice".to_owned(),
        ),
        (
            "output = [ \"o/\" ]; stdout = \"o/\";",
            "\"o/\" names a directory; tasks read and write files".to_owned(),
        ),
        (
            "output = [ \"o/\" ]; stdout = \"o\";",
            "\"stdout\" is \"o\", which is not in \"output\"".to_owned(),
        ),
        (
            "output = [ \"e/\" ]; input = [ \"e/x\" ];",
            "\"e/x\" is in \"e/\", a directory that a task makes as a whole".to_owned(),
        ),
    ];
    for (end, message) in cases {
        let reported = expanded(&format!("{rest}{end} }}"), &["/w/d/x", "/w/e/x"]).unwrap_err();
        let message = format!(": task \"a\": {message}");
        assert!(reported.contains(&message), "{end}\n{reported}\n{message}");
    }
}

#[test]
fn output_directory_needs_kernel_with_own_files() {
    let script = |kernel: &str| {
        with_tasks(&format!(
            "{{ name = \"a\"; {kernel} output = [ \"o/\" ]; }}"
        ))
    };
    let mut cluster = JobCluster::default();
    assert!(resolve_in(&script("kernel = \"sort\";"), &cluster).is_ok());
    for (kernel, what) in [
        ("kernel = \"mean\";", "a built-in kernel"),
        ("kernel = \"sort | sort\";", "a pipeline of kernels"),
    ] {
        let reported = errors_in(&script(kernel), &cluster);
        let message = format!("output \"/w/o/\" is a directory, which {what} can't write");
        assert!(reported.contains(&message), "{reported}");
    }
    cluster.files.insert("/w/o", PathLookup::Directory);
    assert!(resolve_in(&script("kernel = \"sort\";"), &cluster).is_ok());
    cluster.files.insert("/w/o/x", PathLookup::Unsealed);
    let reported = errors_in(&script("kernel = \"sort\";"), &cluster);
    assert!(
        reported.contains("output \"/w/o/\" exists already; remove it"),
        "{reported}"
    );
    let replacing = script("kernel = \"sort\";").replace("workdir", "replace = true; workdir");
    assert!(resolve_in(&replacing, &cluster).is_ok());
    cluster.files.insert("/w/o", PathLookup::Unsealed);
    let reported = errors_in(&replacing, &cluster);
    assert!(
        reported.contains("\"/w/o/\" is a directory, but \"/w/o\" exists and is not a directory"),
        "{reported}"
    );
}

#[test]
fn runtime_environment_merges_from_job_and_task() {
    let text = r#"name = "j"; workdir = "/w"; path = [ "/sw/bin" ]; environment = { A = "1"; B = 2; };
tasks = ( { name = "a"; kernel = "max2"; output = [ "o" ]; environment = { A = "3"; }; directories = [ "/sw/./" ]; },
          { name = "b"; kernel = "sort"; output = [ "p" ]; path = [ "/sw" ]; directories = [ "/sw" ]; } );"#;
    let spec = resolve_in(text, &JobCluster::with(&[])).unwrap();
    let runtime_environment = &spec.tasks[0].runtime_environment;
    assert_eq!(runtime_environment.environment["A"], "3");
    assert_eq!(runtime_environment.environment["B"], "2");
    assert_eq!(runtime_environment.directories, ["/sw"]);
    assert_eq!(spec.tasks[1].runtime_environment.path, ["/sw", "/sw/bin"]);
    let wanted = ["/sw/bin/max2", "/sw/bin/", "/sw/"];
    assert_eq!(spec.tasks[0].programs, wanted);
    let kernels: Vec<_> = spec.tasks.iter().map(|task| task.kernel.name()).collect();
    assert_eq!(kernels, ["/sw/bin/max2", "/sw/bin/sort"]);
    // No node has reported the location of the program.
    let elsewhere = text.replace("\"sort\"", "\"/usr/bin/sort\"");
    for (text, good) in [
        (text, false),
        (&elsewhere.replace("max2", "/sw/bin/max2"), true),
    ] {
        assert_eq!(
            resolve_in(text, &JobCluster::default()).is_ok(),
            good,
            "{text}"
        );
    }
}

#[test]
fn invalid_runtime_environments_are_refused() {
    let cases = [
        (
            "environment = { LD_PRELOAD = \"/w/x.so\"; };",
            "the variable \"LD_PRELOAD\" can't be set: it would run other code in programs than lineage records",
        ),
        (
            "environment = { PATH = \"/x\"; };",
            "the variable \"PATH\" can't be set: the node sets it; programs are found by \"path\"",
        ),
        (
            "environment = [ \"A=1\" ];",
            "\"environment\" must be a table of strings such as { OMP_NUM_THREADS = \"4\" }, not an array",
        ),
        (
            "environment = { A = 1.5; };",
            "\"environment\" must be a table of strings such as { OMP_NUM_THREADS = \"4\" }, not a float",
        ),
        (
            "environment = { A = \"\\x00\"; };",
            "an argument must be at most 131072 bytes without a zero byte",
        ),
        (
            "path = [ \"bin\" ];",
            "\"path\" has \"bin\"; write absolute paths of directories on the nodes' hosts, without \"..\" and ':'",
        ),
        (
            "path = [ \"/sw:/etc\" ];",
            "\"path\" has \"/sw:/etc\"; write absolute paths of directories on the nodes' hosts, without \"..\" and ':'",
        ),
        (
            "directories = [ \"/sw/../etc\" ];",
            "\"directories\" has \"/sw/../etc\"; write absolute paths of directories on the nodes' hosts, without \"..\" and ':'",
        ),
        (
            "directories = [ \"/\" ];",
            "\"directories\" has \"/\"; write absolute paths of directories on the nodes' hosts, without \"..\" and ':'",
        ),
        (
            "container = \"astro.sif\";",
            "no node offers containers: kernels are confined so that they can't mount; ask for software on the nodes' hosts by \"directories\" and \"path\"",
        ),
        (
            "directories = [ \"/etc\" ];",
            "no storage node shows the directory `/etc`; tasks see /sw, /sw/bin and the directories below, as their administrators allow by --task-dirs",
        ),
        (
            "directories = [ \"/sw\" ]; node = 3;",
            "node 3 does not have the program `sort`; node 0, 1, 2 does",
        ),
        (
            "directories = [ \"/sw\" ]; resources = { gpu = 2; };",
            "the program `sort`, the directory `/sw`, and no node has all of that together",
        ),
    ];
    for (rest, message) in cases {
        let reported = refused_task(&format!("kernel = \"sort\"; {rest}"));
        assert!(reported.contains(message), "{rest}: {reported}");
    }
}

#[test]
fn runtime_environments_of_all_tasks_are_bounded_in_size() {
    let job = |environment: &str, directories: &str, tasks: usize| {
        let task = |index| {
            format!("{{ name = \"{index}\"; kernel = \"sort\"; output = [ \"{index}\" ]; }}")
        };
        let tasks: Vec<String> = (0..tasks).map(task).collect();
        let tasks = tasks.join(", ");
        parse(&format!(
            "name = \"j\"; workdir = \"/w\"; environment = {{ {environment} }}; directories = [ {directories} ]; tasks = ( {tasks} );"
        ))
    };
    let long = |bytes: usize| format!("A = \"{}\";", "x".repeat(bytes));
    let directories: Vec<String> = (0..65).map(|index| format!("\"/{index}\"")).collect();
    let most = runtime_environment::BYTES_MAX - 2;
    assert!(job(&long(most), "", 1).is_ok());
    assert!(job("", &directories[1..].join(", "), 1).is_ok());
    let with_path = |most: usize| {
        let path = directories[..most].join(", ");
        let text = (0..1001)
            .map(|i| format!("{{ name = \"{i}\"; kernel = \"k{i}\"; output = [ \"{i}\" ]; }}"));
        let text: Vec<String> = text.collect();
        parse(&format!(
            "name = \"j\"; workdir = \"/w\"; path = [ {path} ]; tasks = ( {} );",
            text.join(", ")
        ))
    };
    assert!(with_path(9).is_ok());
    for (wrong, what) in [
        (with_path(10), "10010 searches for programs"),
        (job(&long(most + 1), "", 1), "131073 bytes of variables"),
        (
            job("", &directories.join(", "), 1),
            "65 directories of the host",
        ),
        (job(&long(most), "", 513), "67239936 bytes of variables"),
    ] {
        let reported = wrong.unwrap_err().to_string();
        assert!(reported.contains(what), "{reported}");
    }
}

#[test]
fn patterns_without_match_or_beyond_limits_are_refused() {
    let rest = r#"kernel = "k"; output = [ "{x}" ]; }"#;
    let nothing = "a pattern stands for the files that exist when the job is submitted, and for outputs of tasks above";
    let cases = [
        (r#"{ name = "a"; input = [ "*.gz" ]; "#, format!("3:25: task \"a\": no file matches \"*.gz\"; {nothing}")),
        (r#"{ name = "a"; input = [ "*/b" ]; "#, "3:25: task \"a\": \"*/b\" is not a pattern: wildcards may stand in its last part only".to_owned()),
        (r#"{ name = "a{x}"; foreach = "{x}/b"; "#, "3:28: task \"a{x}\": \"{x}/b\" is not a pattern: names may stand in its last part only".to_owned()),
        (r#"{ name = "a{x}"; foreach = "{x}{y}"; "#, "3:28: task \"a{x}\": \"{x}{y}\" is not a pattern: two names need text between them".to_owned()),
        (r#"{ name = "a{x}"; foreach = "b"; "#, "3:28: task \"a{x}\": \"b\" is not a pattern: it needs a name in braces, such as {x}".to_owned()),
        (r#"{ name = "a"; foreach = { x = [ 1, 2 ]; }; "#, "3:10: task \"a\": all tasks of this foreach would be \"a\"; put {x} into the name".to_owned()),
        (r#"{ name = "a{x}"; foreach = { x = "1..2000000"; }; "#, "3:34: task \"a{x}\": 1999999 tasks; the maximum is 1000000; split it".to_owned()),
        (r#"{ name = "a{x}"; foreach = { x = "1-9"; }; "#, "3:34: task \"a{x}\": \"foreach\" must be a range such as \"1..100\" or an array of strings or integers, not another string".to_owned()),
        (r#"{ name = "a{x}"; foreach = 3; "#, "3:28: task \"a{x}\": \"foreach\" must be a pattern such as \"raw/{x}.fits\" or a table such as { i = \"1..9\" }, not an integer".to_owned()),
    ];
    for (begin, message) in cases {
        let reported = expanded(&format!("{begin}{rest}"), &["/w/b"]).unwrap_err();
        assert_eq!(reported, format!("job.conf:{message}"), "{begin}");
    }
    let long = "x".repeat(1 << 16);
    let bomb = format!(
        "{{ name = \"t{{i}}\"; foreach = {{ i = \"1..100000\"; }}; kernel = \"k\"; args = [ \"{long}\" ]; output = [ \"o{{i}}\" ]; }}"
    );
    assert!(expanded(&bomb, &[]).unwrap_err().contains("too much text"));
}

/// Returns the code blocks of a page in this form.
fn code_blocks<'p>(page: &'p str, form: &str) -> Vec<&'p str> {
    let blocks = page.split("```").skip(1).step_by(2);
    let in_form = |block: &'p str| block.strip_prefix(form)?.strip_prefix('\n');
    blocks.filter_map(in_form).collect()
}

/// Returns the jobs of a page in TOML. Single tasks are completed to jobs; blocks without a task are only parsed.
fn documented_jobs(page: &str) -> Vec<Job> {
    let shown = Directory(&[
        "/calibrate/raw/a.fits",
        "/calibrate/raw/b.fits",
        "/calibrate/flat",
        "/dscal/x.dat",
    ]);
    let mut jobs = Vec::new();
    for block in code_blocks(page, "toml") {
        let head = if block.starts_with("[[task]]") {
            "[job]\nname = \"shown\"\nworkdir = \"/shown\"\n"
        } else if block.starts_with('[') {
            ""
        } else {
            "[[task]]\n"
        };
        let text = format!("{head}{block}");
        if block.contains("[[task]]") {
            let job = Job::read("job.toml", text.as_bytes(), &shown);
            jobs.push(job.unwrap_or_else(|errors| panic!("{errors}\n{text}")));
        } else {
            let parsed = script::parse("job.toml", text.as_bytes());
            assert!(parsed.is_ok(), "{parsed:?}\n{text}");
        }
    }
    jobs
}

#[test]
fn documented_jobs_parse() {
    let pages: [(&str, &[usize]); 5] = [
        (include_str!("../../../../docs/job-files.md"), &[3, 2, 2]),
        (
            include_str!("../../../../docs/parallel-tasks.md"),
            &[3, 3, 3],
        ),
        (include_str!("../../../../docs/variables.md"), &[]),
        (include_str!("../../../../docs/environment.md"), &[1, 2]),
        (include_str!("../../../../docs/scheduling.md"), &[2, 2, 1]),
    ];
    for (page, expected) in pages {
        let jobs = documented_jobs(page);
        let tasks: Vec<usize> = jobs.iter().map(|job| job.tasks.len()).collect();
        assert_eq!(tasks, expected);
    }
}

#[test]
fn documented_listing_in_libconfig_equals_job_in_toml() {
    let page = include_str!("../../../../docs/job-files.md");
    let [listing] = code_blocks(page, "libconfig")[..] else {
        panic!("the page shows one job in libconfig")
    };
    assert_eq!(listing.trim(), LISTING_1.trim());
    let listing = Job::parse("job.conf", listing.as_bytes()).unwrap();
    let jobs = documented_jobs(page);
    // The task that reads a directory depends on the task that writes it.
    assert_eq!(jobs[2].dag.order, [0, 1]);
    let job = &jobs[0];
    let names = |job: &Job| -> Vec<String> {
        let names = job.tasks.iter().map(|task| task.name.clone());
        names.collect()
    };
    assert_eq!(names(job), names(&listing));
    assert_eq!(job.dag.dependencies, listing.dag.dependencies);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn job_errors_name_setting_and_place() {
    let task = r#"tasks = ( { name = "a"; kernel = "k"; output = [ "o" ]; } );"#;
    let cases = [
        (
            r#"workdir = "/w"; "#,
            "1:1: a job needs the setting \"name\"",
        ),
        (
            r#"name = "j"; "#,
            "1:1: a job needs the setting \"workdir\"",
        ),
        (
            r#"name = "j"; workdir = "w"; "#,
            "1:23: \"workdir\" must be an absolute path in the cluster such as \"/scratch/job\", not \"w\"",
        ),
        (
            r#"name = "j/k"; workdir = "/w"; "#,
            "1:8: \"j/k\" can't be a name; use 1 to 255 bytes without '/' and control characters",
        ),
        (
            r#"name = "j"; workdir = "/w"; submission-id = ""; "#,
            "1:45: \"\" can't be a name; use 1 to 255 bytes without '/' and control characters",
        ),
        (
            r#"name = "j"; workdir = 3; "#,
            "1:23: \"workdir\" must be a string, not an integer",
        ),
        (
            r#"name = "j"; workdir = "/w"; strikt = true; "#,
            "1:29: a job has no setting \"strikt\"; did you mean \"strict\"? It may have: name, workdir, tasks, policy, strict, replace, cache, submission-id, intermediate, retries, lifetime, limits, cores, memory, resources, environment, path, directories",
        ),
        (
            r#"name = "j"; workdir = "/w"; strict = 1; "#,
            "1:38: \"strict\" must be true or false, not an integer",
        ),
        (
            r#"name = "j"; workdir = "/w"; retries = -1; "#,
            "1:39: \"retries\" must be from 0 to 100, not -1",
        ),
        (
            r#"name = "j"; workdir = "/w"; limits = { time = "5x"; }; "#,
            "1:47: \"time\" must be a length of time such as 90, \"90s\", \"5m\", \"2h\" or \"1d\", not 5x",
        ),
        (
            r#"name = "j"; workdir = "/w"; limits = { memory = 0; }; "#,
            "1:49: \"memory\" must be a number of bytes such as 4096, \"512M\" or \"4G\", not 0",
        ),
        (
            r#"name = "j"; workdir = "/w"; limits = { cpu = 1; }; "#,
            "1:40: limits has no setting \"cpu\"; it may have: time, memory, output",
        ),
        (
            r#"name = "j"; workdir = "/w"; lifetime = "use"; "#,
            "1:40: \"lifetime\" can't be \"use\"; did you mean \"used\"? It may be: keep, used, or a length of time such as \"2h\"",
        ),
    ];
    for (start, message) in cases {
        assert_eq!(
            errors(&format!("{start}{task}")),
            [format!("job.conf:{message}")]
        );
    }
    let policy = errors(&format!(
        "name = \"j\"; workdir = \"/w\"; policy = \"inputlocality\"; {task}"
    ));
    assert!(
        policy[0].contains("did you mean \"input-locality\"?"),
        "{policy:?}"
    );
    let start = "name = \"j\"; workdir = \"/w\"; ";
    assert!(errors(start)[0].contains("at least one group { … } in \"tasks\""));
    assert!(errors(&format!("{start}tasks = ();"))[0].contains("the job has no tasks"));
    assert!(errors(&format!("{start}tasks = {{}};"))[0].contains("must be a list of groups"));
    assert!(errors(&format!("{start}tasks = (1);"))[0].contains("must be a list of groups"));
    assert_eq!(
        errors("name = \"j\"\n workdir = = 3;"),
        ["job.conf:2:12: expected a value for \"workdir\", found '='"]
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn task_errors_name_setting_and_place() {
    let task =
        |rest: &str| format!("{{ name = \"a\"; kernel = \"k\"; output = [ \"o\" ]; {rest} }}");
    let cases = [
        (
            "inputs = [ \"x\" ];",
            "3:47: task \"a\": a task has no setting \"inputs\"; did you mean \"input\"? It may have: name, foreach, per, layout, variable, reduce, records, halo, access, mpi, kernel, input, output, args, type, stdin, stdout, streaming, node, retries, limits, lifetime, cores, memory, resources, environment, path, directories",
        ),
        (
            "input = \"x\";",
            "3:55: task \"a\": \"input\" must be an array of strings such as [ \"a.dat\", \"b.dat\" ], not a string",
        ),
        (
            "input = [ 1 ];",
            "3:57: task \"a\": \"input\" must be an array of strings such as [ \"a.dat\", \"b.dat\" ], not an integer",
        ),
        (
            "input = [ \"x\", \"./x\" ];",
            "3:62: task \"a\": \"/w/x\" is listed twice",
        ),
        (
            "input = [ \"x\", \"/d/x\" ];",
            "3:62: task \"a\": \"/w/x\" and \"/d/x\" would both be \"x\" to the kernel; rename one",
        ),
        (
            "input = [ \"/d/o\" ];",
            "3:40: task \"a\": \"/d/o\" and \"/w/o\" would both be \"o\" to the kernel; rename one",
        ),
        (
            "input = [ \"x\", \"x/y\" ];",
            "3:62: task \"a\": \"x\" is a file, so \"x/y\" can't be below it; rename one",
        ),
        (
            "input = [ \"o\" ];",
            "3:57: task \"a\": it reads its own output \"/w/o\"; write to another name",
        ),
        (
            "input = [ \"../x\" ];",
            "3:57: task \"a\": \"../x\" has \"..\" in it; name files relative to \"workdir\" or by an absolute path",
        ),
        (
            "input = [ \"\" ];",
            "3:57: task \"a\": a file name must not be empty",
        ),
        (
            "input = [ \"d/\" ];",
            "3:57: task \"a\": no file matches \"d/\"; a pattern stands for the files that exist when the job is submitted, and for outputs of tasks above",
        ),
        (
            "access = \"whole\";",
            "3:56: task \"a\": \"access\" can't be \"whole\"; it may be: part, full",
        ),
        (
            "access = true;",
            "3:56: task \"a\": \"access\" must be a string, not a boolean",
        ),
        (
            "streaming = [ \"x\" ];",
            "3:61: task \"a\": \"streaming\" is \"x\", which is not in \"input\"; list it there",
        ),
        (
            "streaming = \"i\";",
            "3:59: task \"a\": \"streaming\" must be true, or an array of inputs such as [ \"a.dat\" ], not a string",
        ),
        (
            "stdin = \"x\";",
            "3:55: task \"a\": \"stdin\" is \"x\", which is not in \"input\"; list it there",
        ),
        (
            "stdout = \"x\";",
            "3:56: task \"a\": \"stdout\" is \"x\", which is not in \"output\"; list it there",
        ),
        (
            "type = \"script\";",
            "3:54: task \"a\": \"type\" can't be \"script\"; it may be: builtin, native, program, stored, wasm",
        ),
        (
            "node = -1;",
            "3:54: task \"a\": \"node\" must be from 0 to 4294967295, not -1",
        ),
        (
            "args = \"-x\";",
            "3:54: task \"a\": \"args\" must be an array of strings such as [ \"-n\", \"3\" ], not a string",
        ),
        (
            "args = [ 1.5 ];",
            "3:56: task \"a\": \"args\" must be an array of strings such as [ \"-n\", \"3\" ], not a float",
        ),
        (
            "args = [ \"\\x00\" ];",
            "3:56: task \"a\": an argument must be at most 131072 bytes without a zero byte",
        ),
    ];
    for (rest, message) in cases {
        assert_eq!(task_error(&task(rest)), message, "{rest}");
    }
    let cases = [
        (
            r#"{ kernel = "k"; output = [ "o" ]; }"#,
            "3:1: a task needs the setting \"name\"",
        ),
        (
            r#"{ name = "a"; output = [ "o" ]; }"#,
            "3:1: task \"a\": a task needs the setting \"kernel\"",
        ),
        (
            r#"{ name = "a"; kernel = "k"; }"#,
            "3:1: task \"a\": a task needs the setting \"output\"",
        ),
        (
            r#"{ name = "a"; kernel = "k"; output = [ ]; }"#,
            "3:38: task \"a\": a task needs at least one output; without an output its results would be lost",
        ),
        (
            r#"{ name = "a"; kernel = "k"; output = [ "/d/o" ]; }"#,
            "3:40: task \"a\": output \"/d/o\" is not below workdir \"/w\"; a task may only write there",
        ),
        (
            r#"{ name = "a"; kernel = "k"; output = [ "o", "o" ]; }"#,
            "3:45: task \"a\": \"/w/o\" is listed twice",
        ),
        (
            r#"{ name = "a"; kernel = "k"; output = [ "o/p", "o" ]; }"#,
            "3:40: task \"a\": \"o\" is a file, so \"o/p\" can't be below it; rename one",
        ),
        (
            r#"{ name = "a"; kernel = "../k"; output = [ "o" ]; }"#,
            "3:24: task \"a\": \"../k\" has \"..\" in it; name files relative to \"workdir\" or by an absolute path",
        ),
        (
            r#"{ name = "a"; kernel = "b/k"; type = "program"; output = [ "o" ]; }"#,
            "3:24: task \"a\": kernel \"b/k\" can't be of type \"program\": give the name of a program in PATH or an absolute path",
        ),
        (
            r#"{ name = "a"; kernel = "b/k"; type = "builtin"; output = [ "o" ]; }"#,
            "3:24: task \"a\": kernel \"b/k\" can't be of type \"builtin\": built-in kernels have plain names",
        ),
    ];
    for (task, message) in cases {
        assert_eq!(task_error(task), message, "{task}");
    }
}

/// Returns an input of the one task of a job: its name, path and selection.
fn selected(input: &str) -> (String, String, String) {
    let task = "name = \"a\"; kernel = \"k\"; output = [ \"o\" ];";
    let job = parse(&with_tasks(&format!("{{ {task} input = ( {input} ); }}"))).unwrap();
    let input = &job.tasks[0].inputs[0];
    let selection = input.selection.to_string();
    (input.name.clone(), input.path.clone(), selection)
}

#[test]
fn input_may_select_bytes_of_a_file() {
    let is = |name: &str, path: &str, selection: &str| {
        (name.to_owned(), path.to_owned(), selection.to_owned())
    };
    assert_eq!(selected("\"i\""), is("i", "/w/i", ""));
    assert_eq!(selected("{ file = \"i\"; }"), is("i", "/w/i", ""));
    assert_eq!(
        selected("{ file = \"/d/i\"; part = 2; }"),
        is("i", "/d/i", "part 2")
    );
    assert_eq!(
        selected("{ file = \"i\"; part = \"3\"; name = \"s/x\"; }"),
        is("s/x", "/w/i", "part 3")
    );
    assert_eq!(
        selected("{ file = \"i\"; bytes = \"0-4095, 4096-8191\"; }"),
        is("i", "/w/i", "bytes 0-8191")
    );
    assert_eq!(
        selected("{ file = \"i\"; part = 1; bytes = [ \"0-0\", \"5-9,11-12\" ]; }"),
        is("i", "/w/i", "part 1 bytes 0-0,5-9,11-12")
    );
    // Names that look like other syntax are names; a backslash makes a wildcard a character.
    assert_eq!(selected("\"i\\[part 2]@0-5\"").1, "/w/i[part 2]@0-5");
    assert_eq!(selected("{ file = \"a\\*\"; }"), is("a*", "/w/a*", ""));
}

#[test]
fn task_per_part_and_two_ranges_of_one_file_are_parsed() {
    let job = parse(&with_tasks(
        r#"{ name = "t{p}"; foreach = { p = "0..2"; }; kernel = "k"; args = [ "{inputs}" ];
             input = ( { file = "i"; part = "{p}"; name = "piece"; }, "{p}" ); output = [ "o{p}" ]; },
           { name = "two"; kernel = "k"; output = [ "o" ]; stdin = "tail";
             input = ( { file = "i"; bytes = "0-9"; name = "head"; }, { file = "i"; bytes = "90-99"; name = "tail"; } ); }"#,
    ))
    .unwrap();
    for (part, task) in job.tasks[..3].iter().enumerate() {
        assert_eq!(task.inputs[0].selection.to_string(), format!("part {part}"));
        assert_eq!(task.args, ["piece".to_owned(), part.to_string()]);
    }
    assert_eq!(job.tasks[3].stdin.as_deref(), Some("tail"));
    let names: Vec<&str> = job.tasks[3]
        .inputs
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, ["head", "tail"]);
}

/// Invalid inputs, and the errors about them.
const NO_INPUTS: [(&str, &str); 17] = [
    ("{ part = 2; }", "an input needs the setting \"file\""),
    (
        "{ file = \"i\"; parts = 2; }",
        "an input has no setting \"parts\"; did you mean \"part\"? It may have: file, part, bytes, records, name",
    ),
    (
        "{ file = \"i\"; part = -1; }",
        "\"part\" must be from 0 to 4294967295, not -1",
    ),
    (
        "{ file = \"i\"; part = \"{p}\"; }",
        "\"part\" must be the number of a part, not a string",
    ),
    (
        "{ file = \"i\"; part = \"99999999999\"; }",
        "\"part\" must be the number of a part, not a string",
    ),
    (
        "{ file = \"i\"; bytes = 5; }",
        "\"bytes\" must be ranges such as \"0-4095\" or [ \"0-4095\", \"8192-8199\" ], not an integer",
    ),
    (
        "{ file = \"i\"; bytes = []; }",
        "input \"/w/i\": no range of bytes is given",
    ),
    (
        "{ file = \"i\"; bytes = \"5\"; }",
        "input \"/w/i\": `5` is not a range of bytes: give FIRST-LAST, such as 0-4095, several with commas between",
    ),
    (
        "{ file = \"i\"; bytes = \"5-4\"; }",
        "input \"/w/i\": the range of bytes that begins at 5 ends before that",
    ),
    (
        "{ file = \"i\"; bytes = \"0-9,5-20\"; }",
        "input \"/w/i\": the range of bytes that begins at 5 overlaps the one before it, or should stand before it",
    ),
    (
        "{ file = \"i\"; bytes = \"0-18446744073709551615\"; }",
        "input \"/w/i\": `0-18446744073709551615` is not a range of bytes: give FIRST-LAST, such as 0-4095, several with commas between",
    ),
    (
        "{ file = \"*.dat\"; part = 0; }",
        "\"*.dat\" stands for several files; in a table, \"file\" names one (`foreach` makes a task of each), and a backslash before a wildcard makes it a character",
    ),
    (
        "{ file = \"d/\"; part = 0; }",
        "\"d/\" names a directory; tasks read and write files",
    ),
    (
        "{ file = \"i\"; name = \"/w/x\"; }",
        "\"/w/x\" can't be the name of a kernel's input; give a name relative to \"workdir\"",
    ),
    (
        "{ file = \"i\"; name = \"../x\"; }",
        "\"../x\" can't be the name of a kernel's input; give a name relative to \"workdir\"",
    ),
    (
        "{ file = \"i\"; part = 0; }, { file = \"i\"; part = 1; }",
        "\"/w/i\" is listed twice",
    ),
    (
        "{ file = \"i\"; name = \"o\"; }",
        "\"/w/i\" and \"/w/o\" would both be \"o\" to the kernel; rename one",
    ),
];

#[test]
fn invalid_byte_selections_are_reported() {
    let task = |input: &str| {
        format!("{{ name = \"a\"; kernel = \"k\"; output = [ \"o\" ]; input = ( {input} ); }}")
    };
    for (input, expected) in NO_INPUTS {
        let error = task_error(&task(input));
        let reported = error.split_once("task \"a\": ").unwrap().1;
        assert_eq!(reported, expected, "{input}");
    }
    let many: Vec<String> = (0..1025).map(|at| format!("{0}-{0}", 2 * at)).collect();
    let many = task(&format!(
        "{{ file = \"i\"; bytes = \"{}\"; }}",
        many.join(",")
    ));
    assert!(
        task_error(&many)
            .ends_with("1025 ranges of bytes are too many for one input: at most 1024")
    );
}

/// A file that exists at submission is inspected at submission.
#[test]
fn selection_beyond_file_is_refused() {
    let files = JobCluster::with(&[("/w/i", file(2, false)), ("/w/s", file(7, false))]);
    let reported = |input: &str| {
        let task = format!(
            "{{ name = \"a\"; output = [ \"p\" ]; kernel = \"mean\"; input = ( {input} ); }}"
        );
        match parse(&with_tasks(&task)).map(|_| resolve_in(&with_tasks(&task), &files)) {
            Ok(Ok(spec)) => spec.tasks[0].inputs[0].selection.to_string(),
            Ok(Err(error)) => error
                .to_string()
                .split_once("task \"a\": ")
                .unwrap()
                .1
                .to_owned(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(reported("{ file = \"i\"; part = 0; }"), "part 0");
    assert_eq!(reported("{ file = \"s\"; part = 1; }"), "part 1");
    assert_eq!(reported("{ file = \"s\"; bytes = \"3-9\"; }"), "bytes 3-9");
    assert_eq!(
        reported("{ file = \"s\"; bytes = \"3-10\"; }"),
        "input \"/w/s\": bytes up to 10 are asked for, and it has 10"
    );
    assert_eq!(
        reported("{ file = \"s\"; part = 1; bytes = \"0-0\"; }"),
        "input \"/w/s\": bytes up to 0 are asked for, and that part has 0"
    );
    assert_eq!(
        reported("{ file = \"s\"; part = 2; }"),
        "input \"/w/s\": it has no part 2: its parts are numbered from 0, and there are 2"
    );
    assert_eq!(
        reported("{ file = \"i\"; part = 1; }"),
        "input \"/w/i\": it has no part 1: its parts are numbered from 0, and there is 1"
    );
    // An input that does not exist yet is checked when it is read.
    assert_eq!(reported("{ file = \"later\"; part = 9; }"), "part 9");
}

#[test]
fn conflicts_between_tasks_are_reported() {
    let two = |b: &str| {
        format!("{{ name = \"a\"; kernel = \"k\"; input = [ \"i\" ]; output = [ \"o\" ]; }},\n{b}")
    };
    let cases = [
        (
            r#"{ name = "a"; kernel = "k"; output = [ "p" ]; }"#,
            "4:10: task \"a\": another task has that name, at 3:10; names must be unique in a job",
        ),
        (
            r#"{ name = "b"; kernel = "k"; output = [ "/w/./o" ]; }"#,
            "4:40: task \"b\": output \"/w/o\" is also an output of task \"a\" at 3:57; every file has one writer",
        ),
        (
            r#"{ name = "b"; kernel = "k"; output = [ "o/p" ]; }"#,
            "4:40: task \"b\": \"/w/o\" is a file, so \"/w/o/p\" can't be below it; rename one",
        ),
        (
            r#"{ name = "b"; kernel = "k"; input = [ "o/p" ]; output = [ "q" ]; }"#,
            "4:39: task \"b\": \"/w/o\" is a file, so \"/w/o/p\" can't be below it; rename one",
        ),
        (
            r#"{ name = "b"; kernel = "k"; output = [ "i/p" ]; }"#,
            "3:39: task \"a\": \"/w/i\" is a file, so \"/w/i/p\" can't be below it; rename one",
        ),
        (
            r#"{ name = "b"; kernel = "k"; input = [ "o" ]; output = [ "i" ]; }"#,
            "3:1: task \"a\": these tasks depend on each other in a cycle: \"a\" needs \"b\" needs \"a\"; remove one of the inputs",
        ),
    ];
    for (b, message) in cases {
        assert_eq!(task_error(&two(b)), message, "{b}");
    }
}

#[test]
fn cycle_error_omits_tasks_outside_the_cycle() {
    let tasks = r#"{ name = "lead"; kernel = "k"; input = [ "c" ]; output = [ "l" ]; },
        { name = "a"; kernel = "k"; input = [ "b" ]; output = [ "a" ]; },
        { name = "b"; kernel = "k"; input = [ "c" ]; output = [ "b" ]; },
        { name = "c"; kernel = "k"; input = [ "a", "free" ]; output = [ "c" ]; },
        { name = "free"; kernel = "k"; output = [ "free" ]; }"#;
    assert!(task_error(tasks).contains("in a cycle: \"a\" needs \"b\" needs \"c\" needs \"a\";"));
}

#[test]
fn errors_are_in_script_order_and_bounded_in_number() {
    let tasks = r#"{ name = "a"; kernal = "k"; output = [ "o" ]; },
        { name = "b"; kernel = "k"; input = [ "../x" ]; output = [ "o", "o" ]; }"#;
    let all = errors(&with_tasks(tasks));
    let lines: Vec<&str> = all
        .iter()
        .map(|line| line.split(':').nth(1).unwrap())
        .collect();
    assert_eq!(lines, ["3", "3", "4", "4"]);
    let many = "{ name = \"a/\"; kernel = \"k\"; output = [ \"..\" ]; },".repeat(MAX_ERRORS);
    let report = parse(&with_tasks(&many)).unwrap_err();
    assert_eq!(report.errors.len(), MAX_ERRORS);
    assert!(report.left_out > MAX_ERRORS);
    assert!(report.to_string().ends_with("more errors"));
}

#[test]
fn arguments_and_outputs_of_a_task_are_bounded_in_number() {
    let args = format!("args = [ {} ];", "1, ".repeat(MAX_ARGS + 1));
    let task = format!("{{ name = \"a\"; kernel = \"k\"; output = [ \"o\" ]; {args} }}");
    assert!(task_error(&task).contains("10001 arguments; the maximum is 10000"));
    let outputs = "\"o\", ".repeat(MAX_OUTPUTS + 1);
    let task = format!("{{ name = \"a\"; kernel = \"k\"; output = [ {outputs} ]; }}");
    assert!(task_error(&task).contains("10001 outputs; the maximum is 10000"));
}

fn one_kernel(kernel: &str) -> String {
    with_tasks(&format!(
        "{{ name = \"a\"; {kernel} input = [ \"i\" ]; output = [ \"o\" ]; }}"
    ))
}

#[test]
fn kernel_lookup_order_is_stored_builtin_program() {
    let cluster = JobCluster::with(&[
        ("/w/sort", file(1, true)),
        ("/w/bin/f.sh", file(2, true)),
        ("/lib/g.so", file(3, false)),
        ("/w/max", PathLookup::Directory),
    ]);
    let kernel = |text: &str| {
        resolve_in(&one_kernel(text), &cluster).unwrap().tasks[0]
            .kernel
            .clone()
    };
    let stored = |name: &str| Kernel::Stored {
        input: name.to_owned(),
    };
    assert_eq!(kernel("kernel = \"sort\";"), stored("sort"));
    assert_eq!(
        kernel("kernel = \"sort\"; type = \"stored\";"),
        stored("sort")
    );
    assert_eq!(kernel("kernel = \"bin/f.sh\";"), stored("bin/f.sh"));
    assert_eq!(
        kernel("kernel = \"sort\"; type = \"program\";"),
        Kernel::Program("sort".into())
    );
    assert_eq!(
        kernel("kernel = \"/usr/bin/awk\";"),
        Kernel::Program("/usr/bin/awk".into())
    );
    assert_eq!(
        kernel("kernel = \"/lib/g.so\";"),
        Kernel::Native {
            input: "g.so".into()
        }
    );
    assert_eq!(
        kernel("kernel = \"max.so\"; type = \"builtin\";"),
        Kernel::Builtin("max".into())
    );
    assert_eq!(kernel("kernel = \"max\";"), Kernel::Builtin("max".into()));
}

#[test]
fn own_kernels_rank_after_files_and_before_builtin() {
    let mut cluster = JobCluster::with(&[
        ("/w/sort", file(1, true)),
        ("/kernels/1000/sort@1", file(2, true)),
        ("/kernels/1000/max@1.so", file(3, false)),
        ("/kernels/1000/max@2.so", file(4, false)),
        ("/kernels/1000/fold@1.wasm", file(5, false)),
        ("/kernels/1000/plain@1", file(6, false)),
        ("/kernels/7/max@3.so", file(7, false)),
        ("/kernels/7/secret@1.so", PathLookup::Denied),
        ("/kernels/8/planted@1.so", file(8, false)),
    ]);
    let mine = vec!["sort@1", "max@1.so", "max@2.so", "fold@1.wasm", "plain@1"];
    cluster.own = BTreeMap::from([(1000, mine), (7, vec!["max@3.so", "secret@1.so"])]);
    let spec =
        |text: &str| resolve_in(&one_kernel(text), &cluster).map(|spec| spec.tasks[0].clone());
    let kernel = |text: &str| {
        let task = spec(text).unwrap();
        let path = task.inputs.last().map(|input| input.path.clone());
        (task.kernel, path.unwrap_or_default())
    };
    let native = |input: &str, path: &str| {
        let input = input.to_owned();
        (Kernel::Native { input }, path.to_owned())
    };
    assert_eq!(kernel("kernel = \"sort\";").1, "/w/sort");
    assert_eq!(
        kernel("kernel = \"max\";"),
        native("max@2.so", "/kernels/1000/max@2.so")
    );
    assert_eq!(kernel("kernel = \"max.so\";").1, "/kernels/1000/max@2.so");
    assert_eq!(kernel("kernel = \"max@1\";").1, "/kernels/1000/max@1.so");
    assert_eq!(
        kernel("kernel = \"max\"; type = \"builtin\";").0,
        Kernel::Builtin("max".into())
    );
    let input = "fold@1.wasm".to_owned();
    assert_eq!(kernel("kernel = \"fold\";").0, Kernel::Wasm { input });
    let input = "fold@1.wasm".to_owned();
    let text = "kernel = \"fold\"; type = \"native\";";
    assert_eq!(kernel(text).0, Kernel::Native { input });
    assert_eq!(
        kernel("kernel = \"/kernels/7/max\";").1,
        "/kernels/7/max@3.so"
    );
    let refused = |text: &str| spec(text).unwrap_err().to_string();
    assert!(refused("kernel = \"max@3\"; type = \"native\";").contains("was not found"));
    assert!(refused("kernel = \"plain\";").contains("is not executable"));
    assert!(refused("kernel = \"/kernels/7/secret\";").contains("may not read"));
    // The directory of user 8 is not trusted, so its kernels do not count.
    assert!(refused("kernel = \"/kernels/8/planted\";").contains("was not found"));
}

#[test]
fn stored_kernel_is_added_to_inputs_once() {
    let cluster = JobCluster::with(&[("/w/f", file(1, true))]);
    let text = |input: &str| {
        with_tasks(&format!(
            "{{ name = \"a\"; kernel = \"f\"; input = [ {input} ]; output = [ \"o\" ]; }}"
        ))
    };
    for input in ["", "\"f\""] {
        let spec = resolve_in(&text(input), &cluster).unwrap();
        let names: Vec<_> = spec.tasks[0]
            .inputs
            .iter()
            .map(|input| &input.name)
            .collect();
        assert_eq!(names, ["f"]);
    }
}

#[test]
fn kernel_may_be_output_of_another_task() {
    let tasks = r#"{ name = "run"; kernel = "prog"; output = [ "o" ]; },
        { name = "make"; kernel = "sort"; input = [ "src" ]; output = [ "prog" ]; }"#;
    let job = parse(&with_tasks(tasks)).unwrap();
    assert_eq!(job.dag.order, [1, 0]);
    let spec = resolve_in(&with_tasks(tasks), &JobCluster::default()).unwrap();
    assert_eq!(
        spec.tasks[0].kernel,
        Kernel::Stored {
            input: "prog".into()
        }
    );
    assert_eq!(
        spec.tasks[0].inputs[0].origin,
        Origin::Task(spec.tasks[1].task, 0)
    );
}

#[test]
fn replace_overwrites_only_writable_sealed_outputs() {
    let cluster = JobCluster::with(&[
        ("/w/o", file(5, false)),
        ("/w/read-only", file(1, false)),
        ("/w/open", PathLookup::Unsealed),
    ]);
    let script = |output: &str, replace: &str| {
        format!(
            "name = \"n\"; workdir = \"/w\"; {replace}\ntasks = ( {{ name = \"a\"; kernel = \"max\"; \
             input = [ \"i\" ]; output = [ \"{output}\" ]; }} );"
        )
    };
    let spec = resolve_in(&script("o", "replace = true;"), &cluster).unwrap();
    assert_eq!(spec.tasks[0].outputs[0].inode, Inode(5));
    for (output, replace, problem) in [
        ("o", "", "exists already"),
        ("read-only", "replace = true;", "you may not write to it"),
        ("open", "replace = true;", "is still being written"),
    ] {
        let error = errors_in(&script(output, replace), &cluster);
        assert!(error.contains(problem), "{output}: {error}");
    }
}

#[test]
fn pipeline_includes_kernels_and_files_of_its_stages() {
    let cluster = JobCluster::with(&[("/w/bin/f", file(1, true)), ("/w/k.so", file(2, false))]);
    let text = "kernel = \"max where='a|b' | bin/f -x | k.so | bin/f | sort\";";
    let spec = resolve_in(&one_kernel(text), &cluster).unwrap();
    let task = &spec.tasks[0];
    let Kernel::Pipeline(pipeline) = &task.kernel else {
        panic!("{:?}", task.kernel);
    };
    assert_eq!(
        pipeline.text,
        "max where='a|b' | bin/f -x | k.so | bin/f | sort"
    );
    assert_eq!(task.kernel.name(), pipeline.text);
    let stages: Vec<_> = pipeline
        .stages
        .iter()
        .map(|stage| (stage.kernel.name(), stage.args.join(" ")))
        .collect();
    let expected = [
        ("max", "where=a|b"),
        ("bin/f", "-x"),
        ("k.so", ""),
        ("bin/f", ""),
        ("sort", ""),
    ];
    assert_eq!(stages, expected.map(|(name, args)| (name, args.to_owned())));
    assert!(matches!(pipeline.stages[2].kernel, Kernel::Native { .. }));
    let inputs: Vec<_> = task.inputs.iter().map(|input| &*input.name).collect();
    assert_eq!(inputs, ["i", "bin/f", "k.so"]);
    assert_eq!(task.stdout.as_deref(), Some("o"));
    assert!(task.kernel.is_in("bin/f") && task.kernel.is_in("k.so") && !task.kernel.is_in("i"));
    // With a type it is a plain name.
    let cluster = JobCluster::with(&[("/w/a|b", file(1, true))]);
    let spec = resolve_in(
        &one_kernel("kernel = \"a|b\"; type = \"stored\";"),
        &cluster,
    )
    .unwrap();
    assert_eq!(spec.tasks[0].kernel.name(), "a|b");
}

#[test]
fn stage_of_pipeline_may_be_output_of_another_task() {
    let tasks = r#"{ name = "run"; kernel = "max | prog"; output = [ "o" ]; },
        { name = "make"; kernel = "sort"; input = [ "src" ]; output = [ "prog" ]; }"#;
    assert_eq!(parse(&with_tasks(tasks)).unwrap().dag.order, [1, 0]);
}

#[test]
fn invalid_pipelines_are_refused() {
    let cluster = JobCluster::with(&[("/x/f", file(1, true)), ("/y/f", file(2, true))]);
    for (kernel, problem) in [
        (
            "kernel = \"max |\";",
            "is not a pipeline of kernels: there must be a kernel on each side of a |",
        ),
        (
            "kernel = \"max | 'sort\";",
            "is not a pipeline of kernels: a quote has no end",
        ),
        (
            "kernel = \"max | sort\"; args = [ \"x\" ];",
            "\"args\" can't be set for a pipeline of kernels",
        ),
        (
            "kernel = \"max | nope\";",
            "kernel \"nope\" was not found; tried: the file \"/w/nope\"",
        ),
        (
            "kernel = \"/x/f | /y/f\";",
            "\"/x/f\" and \"/y/f\" would both be \"f\" to the kernel",
        ),
    ] {
        let error = errors_in(&one_kernel(kernel), &cluster);
        assert!(error.contains(problem), "{kernel}: {error}");
    }
    let two = "{ name = \"a\"; kernel = \"max | sort\"; output = [ \"o\", \"p\" ]; }";
    let error = errors_in(&with_tasks(two), &cluster);
    assert!(error.contains("but this task has 2"), "{error}");
}

#[test]
fn resolve_reports_conflicts_with_existing_files() {
    let cluster = JobCluster::with(&[
        ("/w/plain", file(1, false)),
        ("/w/mean", file(3, false)),
        ("/w/open", PathLookup::Unsealed),
        ("/w/dir", PathLookup::Directory),
        ("/w/secret", PathLookup::Denied),
        ("/w/away", PathLookup::Away),
        ("/w/o", file(2, false)),
    ]);
    let task = |rest: &str| format!("{{ name = \"a\"; {rest} }}");
    let cases = [
        (
            r#"kernel = "nope"; output = [ "p" ];"#,
            "3:24: task \"a\": kernel \"nope\" was not found; tried: the file \"/w/nope\", then the kernels in \"/kernels/1000\", then the built-in kernel \"nope\", then the program \"nope\" on the nodes' hosts",
        ),
        (
            r#"kernel = "x.so"; type = "native"; output = [ "p" ];"#,
            "3:24: task \"a\": kernel \"x.so\" was not found; tried: the file \"/w/x.so\", then the kernels in \"/kernels/1000\"",
        ),
        (
            r#"kernel = "sub/x"; output = [ "p" ];"#,
            "3:24: task \"a\": kernel \"sub/x\" was not found; tried: the file \"/w/sub/x\", then the built-in kernel \"sub/x\"",
        ),
        (
            r#"kernel = "plain"; output = [ "p" ];"#,
            "3:24: task \"a\": kernel \"/w/plain\" is not executable; run `chmod +x` on it",
        ),
        (
            r#"kernel = "mean"; output = [ "p" ];"#,
            "3:24: task \"a\": \"/w/mean\" is not a kernel, as it is not executable, but it hides the built-in kernel of that name; rename it, or write type = \"builtin\"",
        ),
        (
            r#"kernel = "open"; output = [ "p" ];"#,
            "3:24: task \"a\": \"/w/open\" is still being written; submit when it is closed",
        ),
        (
            r#"kernel = "max"; output = [ "o" ];"#,
            "3:42: task \"a\": output \"/w/o\" exists already; remove it, write to another name, or submit with --replace",
        ),
        (
            r#"kernel = "max"; output = [ "p" ]; input = [ "dir" ];"#,
            "3:59: task \"a\": \"/w/dir\" names a directory; tasks read and write files",
        ),
        (
            r#"kernel = "max"; output = [ "p" ]; input = [ "secret" ];"#,
            "3:59: task \"a\": you may not read \"/w/secret\"",
        ),
        (
            r#"kernel = "max"; output = [ "p" ]; input = [ "away" ];"#,
            "3:59: task \"a\": \"/w/away\" leads through a symbolic link to an absolute path, which begins at the root of the cluster here and does not exist; make the link relative",
        ),
        (
            r#"kernel = "max"; output = [ "p" ]; node = 4;"#,
            "3:1: task \"a\": the cluster has no node 4; see `tidemill status`",
        ),
    ];
    for (rest, message) in cases {
        let report = resolve_in(&with_tasks(&task(rest)), &cluster).unwrap_err();
        assert_eq!(report.to_string(), format!("job.conf:{message}"));
    }
}

#[test]
fn only_strict_job_needs_its_inputs_at_submission() {
    let cluster = JobCluster::with(&[("/w/open", PathLookup::Unsealed)]);
    let tasks = r#"{ name = "a"; kernel = "max"; input = [ "later", "open" ]; output = [ "p" ]; }"#;
    let spec = resolve_in(&with_tasks(tasks), &cluster).unwrap();
    assert!(
        spec.tasks[0]
            .inputs
            .iter()
            .all(|input| input.origin == Origin::Awaited)
    );
    let strict = format!("strict = true; {}", with_tasks(tasks));
    assert_eq!(
        resolve_in(&strict, &cluster).unwrap_err().to_string(),
        "job.conf:3:41: task \"a\": input \"/w/later\" does not exist and no task makes it (the job is strict)\n\
         job.conf:3:50: task \"a\": \"/w/open\" is still being written; submit when it is closed"
    );
}

#[test]
fn waiting_job_lists_awaited_files_with_suggestions() {
    let cluster = JobCluster::with(&[
        ("/w/access.log", file(2, false)),
        ("/w/day-1", file(3, false)),
    ]);
    let tasks = r#"{ name = "a"; kernel = "max"; input = [ "acces.log", "day-2" ]; output = [ "result" ]; },
        { name = "b"; kernel = "max"; input = [ "resutl", "day-2" ]; output = [ "o" ]; }"#;
    let job = parse(&with_tasks(tasks)).unwrap();
    let spec = resolve_in(&with_tasks(tasks), &cluster).unwrap();
    let (waits, total) = awaited(&job, &spec, &cluster, 10);
    let waits: Vec<_> = waits
        .iter()
        .map(|one| (&*one.path, &*one.task, one.nearest.as_deref()))
        .collect();
    let expected = [
        ("/w/acces.log", "a", Some("/w/access.log")),
        ("/w/day-2", "a", None),
        ("/w/resutl", "b", Some("/w/result")),
    ];
    assert_eq!((waits.as_slice(), total), (expected.as_slice(), 3));
    assert_eq!(awaited(&job, &spec, &cluster, 1).0.len(), 1);
    let strict = format!("strict = true; {}", with_tasks(tasks));
    let reported = resolve_in(&strict, &cluster).unwrap_err().to_string();
    assert!(
        reported.contains("did you mean \"/w/access.log\"?"),
        "{reported}"
    );
}

/// Tasks by the files they read and write, where files are numbers; task `i` writes file `i` and perhaps `100 + i`.
type Plan = Vec<(BTreeSet<usize>, bool)>;

fn script_of(plan: &Plan) -> String {
    let quoted = |file: &usize| format!("\"f{file}\"");
    let tasks = plan.iter().enumerate().map(|(index, (reads, second))| {
        let inputs: Vec<String> = reads.iter().map(quoted).collect();
        let mut outputs = vec![quoted(&index)];
        outputs.extend(second.then(|| quoted(&(100 + index))));
        format!(
            "{{ name = \"t{index}\"; kernel = \"max\"; input = [ {} ]; output = [ {} ]; }}",
            inputs.join(", "),
            outputs.join(", ")
        )
    });
    with_tasks(&tasks.collect::<Vec<_>>().join(",\n"))
}

/// Returns the tasks on which each task depends, by comparing every input with every output.
fn naive_dependencies(plan: &Plan) -> Vec<BTreeSet<usize>> {
    let writes =
        |index: usize, file: usize| file == index || (plan[index].1 && file == 100 + index);
    let needs = |reads: &BTreeSet<usize>| {
        (0..plan.len())
            .filter(|&other| reads.iter().any(|&file| writes(other, file)))
            .collect()
    };
    plan.iter().map(|(reads, _)| needs(reads)).collect()
}

/// Returns whether some task depends on itself by any number of steps.
fn naive_cycle(dependencies: &[BTreeSet<usize>]) -> bool {
    let mut reach = dependencies.to_vec();
    for _ in 0..reach.len() {
        for task in 0..reach.len() {
            let more: Vec<usize> = reach[task].iter().flat_map(|&d| reach[d].clone()).collect();
            reach[task].extend(more);
        }
    }
    reach
        .iter()
        .enumerate()
        .any(|(task, reached)| reached.contains(&task))
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let file = prop_oneof![3 => 0..24usize, 1 => 100..124usize];
    let task = (prop::collection::btree_set(file, 0..3), any::<bool>());
    prop::collection::vec(task, 1..20)
}

/// Returns plans whose tasks only read outputs of tasks of smaller rank; ranks are shuffled over the script.
fn acyclic_plan() -> impl Strategy<Value = Plan> {
    (any_plan(), any::<u64>()).prop_map(|(mut plan, seed)| {
        let rank = |task: usize| (task as u64 + 1).wrapping_mul(seed | 1);
        for (index, (reads, _)) in plan.iter_mut().enumerate() {
            reads.retain(|file| rank(file % 100) < rank(index));
        }
        plan
    })
}

proptest! {
    #[test]
    fn dependency_detection_equals_naive_reference(plan in any_plan()) {
        let dependencies = naive_dependencies(&plan);
        match parse(&script_of(&plan)) {
            Ok(job) => {
                prop_assert!(!naive_cycle(&dependencies));
                let found: Vec<BTreeSet<usize>> =
                    job.dag.dependencies.iter().map(|d| d.iter().copied().collect()).collect();
                prop_assert_eq!(found, dependencies);
            }
            Err(report) => prop_assert!(naive_cycle(&dependencies), "{}", report),
        }
    }

    #[test]
    fn topological_order_has_every_task_after_its_dependencies(plan in acyclic_plan()) {
        let job = parse(&script_of(&plan)).unwrap();
        let place: BTreeMap<usize, usize> =
            job.dag.order.iter().enumerate().map(|(place, &task)| (task, place)).collect();
        prop_assert_eq!(place.len(), plan.len());
        prop_assert_eq!(job.dag.order.len(), plan.len());
        for (task, needed) in job.dag.dependencies.iter().enumerate() {
            for dependency in needed {
                prop_assert!(place[dependency] < place[&task]);
                prop_assert!(job.dag.dependants[*dependency].contains(&task));
            }
        }
        let edges = |lists: &[Vec<usize>]| lists.iter().map(Vec::len).sum::<usize>();
        prop_assert_eq!(edges(&job.dag.dependencies), edges(&job.dag.dependants));
    }

    #[test]
    fn resolved_job_keeps_tasks_and_origins_of_script(plan in acyclic_plan()) {
        let text = script_of(&plan);
        let spec = resolve_in(&text, &JobCluster::default()).unwrap();
        prop_assert_eq!(spec.tasks.len(), plan.len());
        let dependencies = naive_dependencies(&plan);
        for (index, task) in spec.tasks.iter().enumerate() {
            prop_assert_eq!(task.inputs.len(), plan[index].0.len());
            for input in &task.inputs {
                match input.origin {
                    Origin::Task(maker, output) => {
                        let maker = spec.tasks.iter().position(|t| t.task == maker).unwrap();
                        prop_assert!(dependencies[index].contains(&maker));
                        prop_assert_eq!(&spec.tasks[maker].outputs[output].path, &input.path);
                    }
                    origin => prop_assert_eq!(origin, Origin::Awaited),
                }
            }
        }
    }

    #[test]
    fn job_parser_never_panics_on_any_settings(
        text in "((name|workdir|tasks|kernel|input|output|args|limits|time|stdin|lifetime|x) ?= ?|\\{|\\}|\\(|\\)|\\[|\\]|;|,|\"(a|/w|\\.\\.|/|5m)?\"|[0-9]|true|1\\.5){0,40}",
    ) {
        let _ = parse(&text);
        let _ = parse(&with_tasks(&format!("{{ name = \"a\"; kernel = \"k\"; output = [ \"o\" ]; {text} }}")));
    }
}

/// Returns the needs and limits of the one task of a job.
fn needs_of(job: &str, rest: &str) -> (Needs, Limits) {
    let text = format!(
        "name = \"j\"; workdir = \"/w\"; {job}\ntasks = ( {{ name = \"a\"; kernel = \"mean\"; output = [ \"p\" ]; {rest} }} );"
    );
    let mut job = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let task = job.tasks.pop().unwrap();
    (task.needs, task.limits)
}

#[test]
fn task_needs_also_set_its_limits() {
    assert_eq!(needs_of("", ""), (Needs::default(), Limits::default()));
    let (needs, limits) = needs_of(
        "cores = 2; resources = { gpu = 1; licence.x = 2; };",
        "memory = \"2 GiB\"; resources = { gpu = 0; licence = { y = 1; matlab.toolbox = 3; }; };",
    );
    assert_eq!((needs.cores, needs.memory_bytes), (2, 2 << 30));
    assert_eq!((limits.cores, limits.memory_bytes), (Some(2), 2 << 30));
    let named = [
        ("licence.matlab.toolbox", 3),
        ("licence.x", 2),
        ("licence.y", 1),
    ];
    let named = named.map(|(name, amount)| (name.to_owned(), amount));
    assert_eq!(needs.named, BTreeMap::from(named));
    let (light, limits) = needs_of("", "cores = 0; limits = { memory = \"3 GiB\"; };");
    assert_eq!((light.cores, light.memory_bytes), (0, 0));
    assert_eq!((limits.cores, limits.memory_bytes), (Some(0), 3 << 30));
    let (needs, limits) = needs_of("memory = \"1 GiB\";", "limits = { memory = \"3 GiB\"; };");
    assert_eq!(
        (needs.memory_bytes, limits.memory_bytes),
        (1 << 30, 3 << 30)
    );
}

#[test]
fn invalid_needs_are_reported_with_place() {
    for (rest, expected) in [
        ("cores = -1;", "\"cores\" must be from 0 to 4096, not -1"),
        ("cores = 1.5;", "\"cores\" must be an integer, not a float"),
        (
            "cores = 99999999999L;",
            "\"cores\" must be from 0 to 4096, not 99999999999",
        ),
        (
            "memory = 0;",
            "\"memory\" must be a number of bytes such as 4096, \"512M\" or \"4G\", not 0",
        ),
        (
            "memory = \"2 XB\";",
            "\"memory\" must be a number of bytes such as 4096, \"512M\" or \"4G\", not 2 XB",
        ),
        ("gpu = 1;", "a task has no setting \"gpu\"; it may have: "),
        (
            "resources = 1;",
            "\"resources\" must be a table such as { gpu = 1, licence = { x = 2 } }, not an integer",
        ),
        (
            "resources = { gpu = \"1\"; };",
            "\"gpu\" must be an integer, not a string",
        ),
        (
            "resources = { gpu = -1; };",
            "\"gpu\" must be from 0 to 1000000000, not -1",
        ),
        (
            "resources = { cores = 1; };",
            "\"cores\" can't be the name of a resource;",
        ),
        (
            "resources = { a..b = 1; };",
            "\"a..b\" can't be the name of a resource;",
        ),
        (
            "resources = { a.b = 1; a = { b = 2; }; };",
            "\"a.b\" is listed twice",
        ),
        (
            "memory = \"2 GiB\"; limits = { memory = \"1 GiB\"; };",
            "limits.memory is 1073741824 bytes, less than \"memory\", 2147483648 bytes,",
        ),
    ] {
        let error = task_error(&format!(
            "{{ name = \"a\"; kernel = \"mean\"; output = [ \"p\" ]; {rest} }}"
        ));
        let found = error.split_once("task \"a\": ").unwrap().1;
        assert!(found.starts_with(expected), "{found}\nexpected {expected}");
        assert!(error.starts_with("3:"), "{error}");
    }
    let many: String = (0..=NAMES).map(|n| format!("r{n} = 1; ")).collect();
    let error = task_error(&format!(
        "{{ name = \"a\"; kernel = \"mean\"; output = [ \"p\" ]; resources = {{ {many} }}; }}"
    ));
    assert!(error.contains("65 resources; the maximum is 64"), "{error}");
}

#[test]
fn distinct_needs_of_a_job_are_bounded_in_number() {
    let tasks = |count: usize| {
        let tasks: Vec<String> = (1..=count)
            .map(|n| {
                format!(
                    "{{ name = \"t{n}\"; kernel = \"mean\"; output = [ \"o{n}\" ]; memory = {n}; }}"
                )
            })
            .collect();
        with_tasks(&tasks.join(", "))
    };
    assert!(parse(&tasks(MAX_KINDS)).is_ok());
    let all = errors(&tasks(MAX_KINDS + 1));
    assert!(
        all[0].contains("1001 different things that tasks need; the maximum is 1000"),
        "{all:?}"
    );
}

const NAMES: usize = tidemill_model::resources::NAMES_MAX;

#[test]
fn task_that_no_node_can_run_is_refused_with_reason() {
    for (rest, expected) in [
        (
            "kernel = \"mean\"; cores = 5;",
            "it needs cores = 5, and the most that a node offers is 4",
        ),
        (
            "kernel = \"mean\"; memory = \"9 GiB\";",
            "it needs memory = 9663676416 bytes (9.66 GB), and the most that a node offers is 8589934592 bytes (8.59 GB)",
        ),
        (
            "kernel = \"mean\"; resources = { gpu = 3; };",
            "it needs gpu = 3, and the most that a node offers is 2",
        ),
        (
            "kernel = \"mean\"; node = 1; resources = { gpu = 1; };",
            "it needs gpu = 1, and node 1 offers 0",
        ),
        (
            "kernel = \"sort\"; node = 3;",
            "node 3 does not have the program `sort`",
        ),
        (
            "kernel = \"sort\"; resources = { gpu = 1; };",
            "it needs cores = 1, gpu = 1, the program `sort`, and no node has all of that together",
        ),
    ] {
        let error = refused_task(rest);
        let expected = format!("3:1: task \"a\": no node can run it: {expected}");
        assert!(error.starts_with(&expected), "{error}\nexpected {expected}");
    }
    let text = with_tasks("{ name = \"a\"; kernel = \"sort\"; output = [ \"p\" ]; cores = 4; }");
    let job = parse(&text).unwrap();
    let spec = resolve_in(&text, &JobCluster::with(&[])).unwrap();
    assert_eq!(job.tasks[0].needs, spec.tasks[0].needs);
    assert_eq!(spec.tasks[0].programs, ["sort"]);
}
