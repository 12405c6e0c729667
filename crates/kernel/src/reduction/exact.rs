//! Whole reductions of variables in memory: exact numbers, variables of no values, weights.

#![allow(clippy::float_cmp, reason = "results are told exactly")]

use super::table::Column;
use super::*;
use tidemill_format::{
    Attribute, Bytes, DataType, Dimension, Format, Header, Kind, Order, Storage, Store, Value,
    Variable,
};

fn dimension(name: &str, size: u64, unlimited: bool) -> Dimension {
    Dimension {
        name: name.into(),
        size,
        unlimited,
    }
}

fn variable(path: &str, kind: Kind, dimensions: Vec<Dimension>, offset: usize) -> Variable {
    Variable {
        path: path.into(),
        dimensions,
        data_type: DataType {
            kind,
            size: 8,
            order: Order::Little,
        },
        attributes: Vec::new(),
        storage: Storage::Contiguous {
            offset: offset as u64,
        },
        fill: None,
    }
}

fn table(query: &Query, variables: Vec<Variable>, bytes: &dyn Bytes) -> Result<Table> {
    let header = Header {
        format: Format::Hdf5,
        attributes: Vec::new(),
        groups: Vec::new(),
        variables,
    };
    let input = Input {
        name: "f",
        header: &header,
        store: Store::File(bytes),
        bytes: Some(bytes),
    };
    here::reduce(query, &[input], |_| {})
}

fn whole(operation: Operation, numbers: &[i64], fill: Option<i64>) -> Option<i128> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|one| one.to_le_bytes()).collect();
    let mut x = variable(
        "x",
        Kind::Int,
        vec![dimension("i", numbers.len() as u64, false)],
        0,
    );
    x.attributes.extend(fill.map(|fill| Attribute {
        name: "_FillValue".into(),
        value: Value::Int(vec![fill]),
    }));
    let found = table(&Query::new(operation, "x"), vec![x], &bytes).unwrap();
    match &found.fields[0].values {
        Column::Whole(all) => all[0],
        Column::Real(all) => panic!("{all:?}"),
    }
}

#[test]
fn integers_of_64_bits_are_told_apart_and_summed_exactly() {
    let near = [1, 1 << 53, (1 << 53) + 1];
    assert_eq!(whole(Operation::Count, &near, Some(1 << 53)), Some(2));
    assert_eq!(
        whole(Operation::Max, &near, Some(1 << 53)),
        Some((1 << 53) + 1)
    );
    assert_eq!(
        whole(Operation::Max, &near, Some((1 << 53) + 1)),
        Some(1 << 53)
    );
    let ends = [i64::MAX, i64::MAX, i64::MIN];
    assert_eq!(whole(Operation::Count, &ends, Some(i64::MAX)), Some(1));
    assert_eq!(whole(Operation::Count, &ends, Some(i64::MIN + 1)), Some(3));
    // Beyond 64 bits, where numpy's wrap.
    let sum = 2 * i128::from(i64::MAX);
    assert_eq!(whole(Operation::Sum, &ends, Some(i64::MIN)), Some(sum));
    assert_eq!(
        Column::Whole(vec![Some(sum)]).text(0).unwrap(),
        sum.to_string()
    );
}

#[test]
fn sums_beyond_64_bits_are_written_exactly_or_not_at_all() {
    let bytes: Vec<u8> = [i64::MAX; 3]
        .iter()
        .flat_map(|one| one.to_le_bytes())
        .collect();
    let x = variable("x", Kind::Int, vec![dimension("i", 3, false)], 0);
    let found = table(&Query::new(Operation::Sum, "x"), vec![x], &bytes).unwrap();
    let json = found.json();
    assert_eq!(
        json["values"]["sum"],
        (3 * i128::from(i64::MAX)).to_string()
    );
    for form in [Form::Npy, Form::Netcdf] {
        found.write(form, &mut Vec::new()).unwrap_err();
    }
    found.write(Form::Csv, &mut Vec::new()).unwrap();
}

#[test]
fn variables_of_no_values_have_a_count_of_0() {
    let of = |unlimited: bool, operation: Operation| {
        let x = variable(
            "x",
            Kind::Float,
            vec![dimension("i", 0, unlimited), dimension("j", 3, false)],
            0,
        );
        table(&Query::new(operation, "x"), vec![x], &Vec::<u8>::new())
    };
    for unlimited in [false, true] {
        let found = of(unlimited, Operation::Count).unwrap();
        assert_eq!(found.fields[0].values, Column::Whole(vec![Some(0)]));
    }
    let sum = of(true, Operation::Sum).unwrap();
    assert_eq!(sum.fields[0].values, Column::Real(vec![Some(0.0)]));
    for operation in [Operation::Mean, Operation::Max, Operation::Median] {
        let found = of(true, operation).unwrap();
        assert_eq!(
            found.fields[0].values,
            Column::Real(vec![None]),
            "{operation}"
        );
    }
    let refused = of(false, Operation::Sum).unwrap_err().to_string();
    assert!(refused.contains("x of f: a null dataspace"), "{refused}");
}

#[test]
fn the_weighted_mean_of_a_constant_is_the_constant() {
    let (times, lats, lons) = (40_u32, 96_u32, 37_u32);
    let lat = |place: u32| -89.0625 + f64::from(place) * 1.875;
    let mut bytes: Vec<u8> = (0..lats)
        .flat_map(|place| lat(place).to_le_bytes())
        .collect();
    let first = bytes.len();
    for constant in [288.0, 0.1, 1.0 / 3.0, 271.26] {
        bytes.truncate(first);
        bytes.extend((0..times * lats * lons).flat_map(|_| f64::to_le_bytes(constant)));
        let dimensions = [("time", times), ("lat", lats), ("lon", lons)];
        let dimensions: Vec<Dimension> = dimensions
            .iter()
            .map(|(name, size)| dimension(name, (*size).into(), false))
            .collect();
        let variables = vec![
            variable("lat", Kind::Float, vec![dimensions[1].clone()], 0),
            variable("x", Kind::Float, dimensions, first),
        ];
        for over in [None, Some(vec!["time".to_owned(), "lat".to_owned()])] {
            let query = Query {
                weights: Some("lat".into()),
                over,
                ..Query::new(Operation::Mean, "x")
            };
            let found = table(&query, variables.clone(), &bytes).unwrap();
            let Column::Real(all) = &found.fields[0].values else {
                panic!("a mean of integers");
            };
            for mean in all {
                let away = (mean.unwrap() - constant).abs();
                assert!(
                    away <= constant.next_up() - constant,
                    "{mean:?} for {constant}"
                );
            }
        }
    }
}
