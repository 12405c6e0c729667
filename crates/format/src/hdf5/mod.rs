//! Reader of HDF5 files, and of netCDF-4 files, which are HDF5 files.
//!
//! The reader supports superblocks 0 to 3, old and new groups, contiguous, compact and chunked datasets with all kinds of chunk index,
//! filters, and attributes in all their locations. It does not follow links to other names and files. It follows the HDF5 file format
//! specification, version 3; names of dimensions follow the netCDF-4 data model's use of dimension scales.

mod chunks;
mod file;
mod heap;
mod message;
mod object;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use crate::{Bytes, Dimension, Error, Format, Group, Header, NAMES_MAX, Result, Value, Variable};
use file::Hdf5File;
use object::{Dataset, Hdf5Object};

pub use chunks::{CHUNKS_MAX, chunks};
pub use message::Hdf5Index;

/// Maximum depth of nested groups.
const DEPTH_MAX: usize = 64;
/// Prefix that the netCDF library adds to the name of a variable that has the name of a dimension but is no coordinate.
const NOT_COORDINATE: &str = "_nc4_non_coord_";
/// First part of the name of a dimension scale that is only a dimension, and no variable.
const ONLY_DIMENSION: &str = "This is a netCDF dimension but not a netCDF variable";

/// Returns whether a file begins like HDF5 (or contains HDF5 after 512, 1024, … bytes of other data).
pub fn is(bytes: &dyn Bytes) -> bool {
    file::signature(bytes).is_some()
}

/// Reads the header of an HDF5 file.
///
/// # Errors
/// If the file has another format, is corrupt, or exceeds the limits of any real file.
pub fn read(bytes: &dyn Bytes) -> Result<Header> {
    let (mut file, root) = Hdf5File::open(bytes)?;
    let mut walk = GroupWalk {
        seen: BTreeSet::from([root]),
        left: vec![(String::new(), root, 0)],
        ..GroupWalk::default()
    };
    while let Some((path, address, depth)) = walk.left.pop() {
        walk.object(&mut file, path, address, depth)?;
    }
    walk.datasets.sort_by_key(|dataset| dataset.order);
    let netcdf = walk.netcdf
        || walk
            .datasets
            .iter()
            .any(|dataset| dataset.dimension_id.is_some());
    let format = if netcdf {
        Format::Netcdf4
    } else {
        Format::Hdf5
    };
    let variables = name_dimensions(&mut file, walk.datasets)?;
    Ok(Header {
        format,
        attributes: walk.attributes,
        groups: walk.groups,
        variables,
    })
}

#[derive(Default)]
struct GroupWalk {
    seen: BTreeSet<u64>,
    left: Vec<(String, u64, usize)>,
    netcdf: bool,
    attributes: Vec<crate::Attribute>,
    groups: Vec<Group>,
    datasets: Vec<Dataset>,
}

impl GroupWalk {
    fn object(
        &mut self,
        file: &mut Hdf5File<'_>,
        path: String,
        address: u64,
        depth: usize,
    ) -> Result<()> {
        let order = self.seen.len() - self.left.len();
        match object::read(file, &path, address)? {
            Hdf5Object::Dataset(mut dataset) => {
                dataset.order = order;
                self.datasets.push(*dataset);
            }
            Hdf5Object::Other => {}
            Hdf5Object::Group {
                links,
                attributes,
                netcdf,
            } => {
                self.netcdf |= netcdf;
                if path.is_empty() {
                    self.attributes = attributes;
                } else {
                    self.groups.push(Group {
                        path: path.clone(),
                        attributes,
                    });
                }
                if depth >= DEPTH_MAX {
                    return Err(Error::Limit {
                        what: "groups within groups",
                        limit: DEPTH_MAX as u64,
                    });
                }
                for (name, address) in links.into_iter().rev() {
                    if self.seen.insert(address) {
                        let path = if path.is_empty() {
                            name
                        } else {
                            format!("{path}/{name}")
                        };
                        file.source.charge(path.len() as u64)?;
                        self.left.push((path, address, depth + 1));
                    }
                }
                if self.seen.len() > NAMES_MAX {
                    return Err(Error::Limit {
                        what: "datasets and groups",
                        limit: NAMES_MAX as u64,
                    });
                }
            }
        }
        Ok(())
    }
}

/// Description of a dimension by its dimension scale.
struct DimensionScale {
    name: String,
    size: u64,
    unlimited: bool,
}

fn base(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_prefix(NOT_COORDINATE).unwrap_or(name)
}

/// Dimension scales of a file, by their addresses and by the numbers that the netCDF library gives dimensions.
#[derive(Default)]
struct Scales {
    by_address: BTreeMap<u64, DimensionScale>,
    by_number: BTreeMap<i64, u64>,
}

impl Scales {
    fn add(&mut self, dataset: &Dataset) {
        let Some(first) = dataset.variable.dimensions.first() else {
            return;
        };
        let name = base(&dataset.variable.path).to_owned();
        // A coordinate of several dimensions is the scale of one of them, and has the number of that dimension.
        let own = dataset
            .dimension_id
            .and_then(|id| dataset.coordinates.iter().position(|other| *other == id));
        let own = own
            .and_then(|own| dataset.variable.dimensions.get(own))
            .unwrap_or(first);
        self.by_address.insert(
            dataset.address,
            DimensionScale {
                name,
                size: own.size,
                unlimited: own.unlimited,
            },
        );
        if let Some(id) = dataset.dimension_id {
            self.by_number.insert(id, dataset.address);
        }
    }

    /// Returns the dimension scale of a dataset's dimension.
    fn of(&mut self, dataset: &Dataset, position: usize) -> Option<&mut DimensionScale> {
        let listed = dataset.dimension_list.get(position).copied().flatten();
        let numbered = dataset
            .coordinates
            .get(position)
            .and_then(|id| self.by_number.get(id))
            .copied();
        let own =
            (dataset.scale && dataset.variable.dimensions.len() == 1).then_some(dataset.address);
        self.by_address.get_mut(&listed.or(numbered).or(own)?)
    }
}

/// Names dimensions after the scales that are attached to them, and sets their lengths, which may exceed the present length of a dataset.
fn name_dimensions(file: &mut Hdf5File<'_>, datasets: Vec<Dataset>) -> Result<Vec<Variable>> {
    let mut scales = Scales::default();
    datasets
        .iter()
        .filter(|dataset| dataset.scale)
        .for_each(|dataset| scales.add(dataset));
    for dataset in &datasets {
        for (position, dimension) in dataset.variable.dimensions.iter().enumerate() {
            if let Some(scale) = scales.of(dataset, position).filter(|scale| scale.unlimited) {
                scale.size = scale.size.max(dimension.size);
            }
        }
    }
    let mut variables = Vec::new();
    for mut dataset in datasets {
        for position in 0..dataset.variable.dimensions.len() {
            if let Some(scale) = scales.of(&dataset, position) {
                let dimension = &mut dataset.variable.dimensions[position];
                file.source.charge(scale.name.len() as u64)?;
                let size = if dimension.unlimited {
                    scale.size
                } else {
                    dimension.size
                };
                *dimension = Dimension {
                    name: scale.name.clone(),
                    size,
                    unlimited: dimension.unlimited,
                };
            }
        }
        if !dataset.only_dimension {
            let path = dataset.variable.path;
            let parent = path
                .rsplit_once('/')
                .map_or(String::new(), |(parent, _)| format!("{parent}/"));
            let path = format!("{parent}{}", base(&path));
            variables.push(
                Variable {
                    path,
                    ..dataset.variable
                }
                .checked()?,
            );
        }
    }
    Ok(variables)
}

/// Returns whether the name of a dimension scale states that the scale is no variable.
fn is_only_dimension(name: &Value) -> bool {
    matches!(name, Value::Text(name) if name.starts_with(ONLY_DIMENSION))
}
