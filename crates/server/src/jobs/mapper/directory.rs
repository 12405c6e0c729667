//! Maps of a Zarr that is a directory of files: each chunk or shard is a separate file on its own nodes. This module reads only metadata.

use super::{CHUNKS_MAX, chosen, codecs, dtype, join_near, joined, numbers, place};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use tidemill_compute::array::{HeldChunk, VariablePart};
use tidemill_format::{
    Directory, IndexRange as Indices, Storage, Variable, VariableSource, pieces, zarr,
};
use tidemill_lang::job::{DirectoryMap, ExternalInput, MappedFile, Mapping};
use tidemill_model::id::NodeId;
use tidemill_model::layout::{Layout, RANGES_MAX, Selection, VALUES_BYTES_MAX};

/// Maximum number of files of one task instance with `per = "stripe-object"`: several instances read the files of a node with more files.
const FILES_MAX: usize = 256;
/// Maximum number of bytes that the description of the decoding uses for chunks; the rest is for the description of the variable.
const CHUNKS_BYTES_MAX: usize = VALUES_BYTES_MAX * 3 / 4;

/// Access to files of the cluster by their full paths, with the rights of a job's owner.
pub(in crate::jobs) trait Below {
    /// Returns the sealed version of a file; `None` if the file does not exist or has no sealed version.
    fn look(&self, path: &str) -> io::Result<Option<ExternalInput>>;
    /// Reads bytes of a version at an offset.
    fn read_at(
        &self,
        path: &str,
        made: &ExternalInput,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<()>;
    /// Returns the names of the entries of a directory.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
}

/// Snapshot of a directory: each file keeps the state in which it was first looked up.
struct DirectorySnapshot<'a> {
    files: &'a dyn Below,
    root: &'a str,
    known: RefCell<BTreeMap<String, ExternalInput>>,
}

impl DirectorySnapshot<'_> {
    fn path(&self, below: &str) -> String {
        match below {
            "" => self.root.to_owned(),
            _ => format!("{}/{below}", self.root),
        }
    }

    fn made(&self, below: &str) -> io::Result<Option<ExternalInput>> {
        if let Some(made) = self.known.borrow().get(below) {
            return Ok(Some(made.clone()));
        }
        let path = self.path(below);
        let made = self.files.look(&path).map_err(|error| {
            let kind = error.kind();
            io::Error::new(kind, format!("{path}: {error}"))
        })?;
        if let Some(made) = &made {
            let mut known = self.known.borrow_mut();
            known.insert(below.to_owned(), made.clone());
        }
        Ok(made)
    }
}

impl Directory for DirectorySnapshot<'_> {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(self.made(path)?.map(|made| made.layout.size()))
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let made = self.made(path)?.ok_or(io::ErrorKind::NotFound)?;
        let full = self.path(path);
        let read = self.files.read_at(&full, &made, offset, into);
        read.map_err(|error| io::Error::new(error.kind(), format!("{full}: {error}")))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.files.list(&self.path(path))
    }
}

/// A chunk of a variable, with the index of the file that contains the chunk.
struct FileChunk {
    file: usize,
    span: Range<u64>,
    held: HeldChunk,
}

/// A variable of a Zarr, with its chunks and their files.
struct ChunkedVariable {
    held: VariablePart,
    files: Vec<(String, ExternalInput)>,
    chunks: Vec<FileChunk>,
}

/// Returns the task instances of a Zarr variable, each with the files that it reads.
///
/// # Errors
/// The text is for the author of the mapper: it names the error in the mapper, the directory or its content.
pub(in crate::jobs) fn map(
    files: &dyn Below,
    root: &str,
    mapping: &Mapping<'_>,
) -> Result<DirectoryMap, String> {
    let mapper = mapping.mapper;
    let (kind, name) = mapper.split_once(':').unwrap_or((mapper, ""));
    if kind != "zarr" {
        return Err(format!(
            "{mapper}: {root} is a directory: only a directory that is a Zarr has variables, as \"zarr:ARRAY\""
        ));
    }
    let tree = DirectorySnapshot {
        files,
        root,
        known: RefCell::default(),
    };
    let reported = |why: &dyn std::fmt::Display| format!("{mapper}: {root}: {why}");
    if !zarr::is(&tree).map_err(|error| reported(&error))? {
        let why = "the directory is not a Zarr: it has neither zarr.json, .zgroup nor .zarray";
        return Err(reported(&why));
    }
    let header = zarr::read(&tree).map_err(|error| reported(&whole(&error)))?;
    let variable = chosen(&header, (kind, name)).map_err(|why| reported(&why))?;
    let form = numbers::input_form(mapping.kernels, variable, header.format);
    let form = form.map_err(|why| reported(&why))?;
    let mut found = ChunkedVariable::new(variable, &tree).map_err(|why| reported(&why))?;
    found.held.absent = form.absent;
    let instances = match mapping.per_part {
        true => found.parts(),
        false => found.chunks.iter().map(|chunk| vec![chunk]).collect(),
    };
    let files = instances.iter().map(|chunks| found.files_of(chunks));
    Ok(DirectoryMap {
        instances: files
            .collect::<Result<_, _>>()
            .map_err(|why| reported(&why))?,
        args: form.args,
    })
}

/// Returns the text of an error with its cause.
fn whole(error: &tidemill_format::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl ChunkedVariable {
    fn new(variable: &Variable, tree: &DirectorySnapshot<'_>) -> Result<Self, String> {
        let (dtype, swap) = dtype(&variable.data_type)?;
        let Storage::Chunked(chunked) = &variable.storage else {
            return Err("it is not stored in chunks, and can't be read".to_owned());
        };
        let mut found = Self {
            held: VariablePart {
                variable: variable.path.clone(),
                dtype,
                element: variable.data_type.size,
                swap,
                shape: variable.shape(),
                chunk_shape: Some(chunked.shape.clone()),
                codecs: codecs(&chunked.filters, 0)?,
                more: 0,
                absent: None,
                chunks: Vec::new(),
            },
            files: Vec::new(),
            chunks: Vec::new(),
        };
        let all: Vec<_> = variable.shape().into_iter().map(Indices::all).collect();
        let chunks = pieces(variable, &all, VariableSource::Directory(tree), u64::MAX);
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for (looked, chunk) in chunks.map_err(|error| whole(&error))?.enumerate() {
            // Most chunks of a sparse variable may never have been written.
            if looked >= 16 * CHUNKS_MAX || found.chunks.len() >= CHUNKS_MAX {
                return Err(format!(
                    "it has more than {CHUNKS_MAX} chunks, or {} possible chunks: store it in larger chunks",
                    16 * CHUNKS_MAX
                ));
            }
            let chunk = chunk.map_err(|error| whole(&error))?;
            let Some(span) = chunk.span else { continue };
            let file = span.file.ok_or("its chunks are not in files")?;
            if span.size == 0 {
                return Err(format!("{file} is empty: it was truncated or is corrupt"));
            }
            let made = tree.made(&file).map_err(|error| error.to_string())?;
            let made = made.ok_or_else(|| format!("{file} was deleted during the submission"))?;
            let number = *numbers.entry(file).or_insert_with_key(|file| {
                found.files.push((file.clone(), made));
                found.files.len() - 1
            });
            found.chunks.push(FileChunk {
                file: number,
                span: span.offset..span.offset.saturating_add(span.size),
                held: HeldChunk {
                    start: chunk.at,
                    shape: chunk.within.iter().map(Indices::count).collect(),
                    offset: 0,
                    length: span.size,
                    stride: None,
                    codecs: None,
                },
            });
        }
        match found.chunks.is_empty() {
            true => Err("none of its chunks exist, so there is nothing to read".to_owned()),
            false => Ok(found),
        }
    }

    /// Returns the node with the most bytes of a chunk; if several nodes have equally many bytes, the first of these nodes.
    fn node(&self, chunk: &FileChunk) -> NodeId {
        let layout = &self.files[chunk.file].1.layout;
        let spans = layout.spans(chunk.span.clone());
        let most = spans
            .iter()
            .rev()
            .max_by_key(|(_, bytes)| bytes.end - bytes.start);
        let part = most.and_then(|(part, _)| layout.parts().get(*part));
        let replica = part.and_then(|part| part.replicas.first());
        replica.map_or(NodeId(0), |replica| replica.node)
    }

    /// Groups the chunks by node, file by file, into task instances of bounded size.
    fn parts(&self) -> Vec<Vec<&FileChunk>> {
        let mut nodes: BTreeMap<NodeId, Vec<&FileChunk>> = BTreeMap::new();
        for chunk in &self.chunks {
            nodes.entry(self.node(chunk)).or_default().push(chunk);
        }
        let mut instances = Vec::new();
        for mut chunks in nodes.into_values() {
            chunks.sort_by_key(|chunk| chunk.file);
            let (mut taken, mut files, mut bytes) = (Vec::new(), BTreeSet::new(), 0);
            for chunk in chunks {
                files.insert(chunk.file);
                bytes += serde_json::to_string(&chunk.held).map_or(0, |text| text.len() + 20);
                if files.len() > FILES_MAX || bytes > CHUNKS_BYTES_MAX {
                    instances.push(std::mem::take(&mut taken));
                    (files, bytes) = (BTreeSet::from([chunk.file]), 0);
                }
                taken.push(chunk);
            }
            instances.push(taken);
        }
        instances.retain(|taken| !taken.is_empty());
        instances
    }

    /// Returns the files that a task instance reads for these chunks; chunks of one file are adjacent.
    fn files_of(&self, chunks: &[&FileChunk]) -> Result<Vec<MappedFile>, String> {
        let mut held = self.held.clone();
        let mut files = Vec::new();
        let mut begin = 0;
        for chunks in chunks.chunk_by(|one, other| one.file == other.file) {
            let (below, made) = &self.files[chunks[0].file];
            let mut ranges = joined(chunks.iter().map(|chunk| chunk.span.clone()).collect());
            if ranges.len() > RANGES_MAX {
                join_near(&mut ranges);
            }
            for chunk in chunks {
                let offset = begin + place(&ranges, chunk.span.start);
                held.chunks.push(HeldChunk {
                    offset,
                    ..chunk.held.clone()
                });
            }
            begin += ranges
                .iter()
                .map(|range| range.end - range.start)
                .sum::<u64>();
            let all = 0..made.layout.size();
            let selection = match &made.layout {
                // The file is read in place.
                Layout::Whole(_) if ranges == [all] => Ok(Selection::part(0)),
                _ => Selection::ranges(None, &ranges),
            };
            files.push(MappedFile {
                below: below.clone(),
                object: made.object,
                selection: selection.map_err(|error| format!("{below}: {error}"))?,
            });
        }
        held.more = u32::try_from(files.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let text = serde_json::to_string(&held).map_err(|error| error.to_string())?;
        if let Some(first) = files.first_mut() {
            let selection = first.selection.clone().of_values(Some(&text));
            first.selection = selection.map_err(|error| error.to_string())?;
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, file_layout, fixtures, plain};
    use super::*;
    use serde_json::Value as Json;
    use std::path::PathBuf;
    use tidemill_model::id::ObjectId;
    use tidemill_model::layout::Part;

    /// A local directory that represents the cluster: its files are on three nodes, or striped over two nodes.
    struct LocalTree {
        root: PathBuf,
        striped: bool,
        denied: Option<&'static str>,
    }

    impl LocalTree {
        fn at(&self, path: &str) -> PathBuf {
            self.root
                .join(path.strip_prefix("/z").unwrap().trim_start_matches('/'))
        }
    }

    impl Below for LocalTree {
        fn look(&self, path: &str) -> io::Result<Option<ExternalInput>> {
            if self.denied.is_some_and(|denied| path.ends_with(denied)) {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "may not be read",
                ));
            }
            let Some(size) = self
                .at(path)
                .metadata()
                .ok()
                .filter(std::fs::Metadata::is_file)
            else {
                return Ok(None);
            };
            let number = path
                .bytes()
                .fold(0_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
            let object = ObjectId(u64::from(number) + 1);
            let layout = match self.striped {
                true => file_layout(size.len(), 16, 2),
                false => Layout::Whole(Part::on(object, size.len(), NodeId(number % 3))),
            };
            Ok(Some(ExternalInput { object, layout }))
        }

        fn read_at(
            &self,
            path: &str,
            _: &ExternalInput,
            offset: u64,
            into: &mut [u8],
        ) -> io::Result<()> {
            let bytes = std::fs::read(self.at(path))?;
            let from = usize::try_from(offset).unwrap();
            into.copy_from_slice(&bytes[from..from + into.len()]);
            Ok(())
        }

        fn list(&self, path: &str) -> io::Result<Vec<String>> {
            let names = std::fs::read_dir(self.at(path))?;
            Ok(names
                .flatten()
                .map(|entry| entry.file_name().into_string().unwrap())
                .collect())
        }
    }

    /// Puts the values of all task instances into the array of the variable; returns the number of values.
    fn put_together(
        here: &LocalTree,
        instances: &[Vec<MappedFile>],
        into: &mut [Option<Vec<u8>>],
    ) -> usize {
        let mut put = 0;
        for files in instances {
            let held: VariablePart =
                serde_json::from_str(files[0].selection.values().unwrap()).unwrap();
            assert_eq!(held.more as usize, files.len() - 1);
            let stored: Vec<Vec<u8>> = files
                .iter()
                .map(|file| {
                    let bytes = std::fs::read(here.root.join(&file.below)).unwrap();
                    match file.selection.byte_ranges() {
                        None => bytes,
                        Some(ranges) => ranges
                            .flat_map(|range| {
                                bytes[usize::try_from(range.start).unwrap()
                                    ..usize::try_from(range.end).unwrap()]
                                    .to_vec()
                            })
                            .collect(),
                    }
                })
                .collect();
            let stored: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
            let mut values = Vec::new();
            held.decode_all(&stored, &mut values).unwrap();
            let mut values = values.chunks(held.element as usize);
            for chunk in &held.chunks {
                for number in 0..chunk.shape.iter().product::<u64>() {
                    let within = super::super::indices(number, &chunk.shape);
                    let place = chunk
                        .start
                        .iter()
                        .zip(&within)
                        .zip(&held.shape)
                        .fold(0, |place, ((start, index), size)| {
                            place * size + start + index
                        });
                    let before = into[usize::try_from(place).unwrap()]
                        .replace(values.next().unwrap().to_vec());
                    assert!(before.is_none(), "{place} twice");
                    put += 1;
                }
            }
            assert!(values.next().is_none());
        }
        put
    }

    fn here(name: &str, striped: bool) -> LocalTree {
        LocalTree {
            root: fixtures().join(name),
            striped,
            denied: None,
        }
    }

    /// Compares Zarrs of versions 2 and 3, with and without shards and consolidated metadata, whole and striped, with the values that
    /// zarr-python reads.
    #[test]
    fn mapped_zarr_instances_hold_values_that_zarr_python_reads() {
        let mut right = 0;
        for name in ["two.zarr", "three.zarr", "consolidated.zarr"] {
            let reported = std::fs::read(fixtures().join(format!("{name}.json"))).unwrap();
            let reported: Json = serde_json::from_slice(&reported).unwrap();
            for variable in reported["variables"].as_array().unwrap() {
                let Some(expected) = expected(variable) else {
                    continue;
                };
                let mapper = format!("zarr:{}", variable["path"].as_str().unwrap());
                for (striped, per_part) in
                    [(false, true), (false, false), (true, true), (true, false)]
                {
                    let here = here(name, striped);
                    let instances = match map(&here, "/z", &plain(&mapper, per_part))
                        .map(|map| map.instances)
                    {
                        Ok(instances) => instances,
                        Err(why) => {
                            let known = ["can't be decoded here", "none of its chunks"];
                            assert!(
                                known.iter().any(|known| why.contains(known)),
                                "{name} {why}"
                            );
                            continue;
                        }
                    };
                    assert!(
                        !per_part || striped || instances.len() <= 3,
                        "one for each node"
                    );
                    let held = instances[0][0].selection.values().unwrap();
                    let size = serde_json::from_str::<VariablePart>(held).unwrap().element as usize;
                    let mut found = vec![None; expected.len() / size];
                    let put = put_together(&here, &instances, &mut found);
                    assert!(put > 0);
                    for (found, expected) in found.iter().zip(expected.chunks(size)) {
                        assert!(
                            found.as_deref().is_none_or(|found| found == expected),
                            "{name} {mapper}"
                        );
                    }
                    right += 1;
                }
            }
        }
        assert!(right >= 40, "{right}");
    }

    #[test]
    fn zarr_mapper_error_contains_path_of_invalid_file() {
        let reported =
            |here: &LocalTree, mapper: &str| map(here, "/z", &plain(mapper, true)).unwrap_err();
        let good = here("three.zarr", false);
        assert!(reported(&good, "netcdf:tas").contains("is a directory"));
        assert!(reported(&good, "zarr:rain").contains("no variable rain; there are"));
        let none = LocalTree {
            root: fixtures().join("three.zarr/tas/c"),
            ..here("", false)
        };
        assert!(reported(&none, "zarr:tas").contains("is not a Zarr"));
        for denied in ["tas/zarr.json", "tas/c/0/1"] {
            let here = LocalTree {
                denied: Some(denied),
                ..here("three.zarr", false)
            };
            let why = reported(&here, "zarr:tas");
            assert!(
                why.contains(&format!("/z/{denied}: may not be read")),
                "{why}"
            );
        }
    }

    /// A directory has thousands of chunks of one byte: the size of each task instance is bounded for any number of chunks.
    #[test]
    fn zarr_mapper_with_thousands_of_chunks_bounds_each_task_instance() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        let array = serde_json::json!({
            "zarr_format": 2, "shape": [2000], "chunks": [1], "dtype": "|u1", "compressor": null, "filters": null,
            "fill_value": 0, "order": "C",
        });
        std::fs::write(at(".zarray"), array.to_string()).unwrap();
        for chunk in (0..2000).filter(|chunk| chunk % 4 != 3) {
            std::fs::write(
                at(&chunk.to_string()),
                [chunk.to_string().len().to_le_bytes()[0]],
            )
            .unwrap();
        }
        let here = LocalTree {
            root: directory.path().to_owned(),
            ..here("", false)
        };
        let instances = map(&here, "/z", &plain("zarr:", true)).unwrap().instances;
        assert!((6..20).contains(&instances.len()), "{}", instances.len());
        assert!(instances.iter().all(|files| files.len() <= FILES_MAX));
        let mut found = vec![None; 2000];
        assert_eq!(
            put_together(&here, &instances, &mut found),
            1500,
            "missing values are in no chunk"
        );
        std::fs::write(at("3"), b"").unwrap();
        assert!(
            map(&here, "/z", &plain("zarr:", true))
                .unwrap_err()
                .contains("3 is empty")
        );
        std::fs::remove_file(at("3")).unwrap();
        let huge = |shape: u64| {
            let huge = array.to_string().replace("2000", &shape.to_string());
            std::fs::write(at(".zarray"), huge).unwrap();
            map(&here, "/z", &plain("zarr:", false)).unwrap_err()
        };
        assert!(huge(1 << 40).contains("more than 65536 chunks"));
        assert!(huge(u64::MAX).contains("more than"));
    }
}
