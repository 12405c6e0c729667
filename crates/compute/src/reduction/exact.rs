//! Tests whole reductions of variables in memory: exact numbers, variables without values, weights.

#![allow(clippy::float_cmp, reason = "results are exact")]

use super::table::Column;
use super::*;
use tidemill_format::{
    Attribute, Bytes, DataKind, DataType, Dimension, Endian, Format, Header, Storage, Value,
    Variable, VariableSource,
};

fn dimension(name: &str, size: u64, unlimited: bool) -> Dimension {
    Dimension {
        name: name.into(),
        size,
        unlimited,
    }
}

fn variable(path: &str, kind: DataKind, dimensions: Vec<Dimension>, offset: usize) -> Variable {
    Variable {
        path: path.into(),
        dimensions,
        data_type: DataType {
            kind,
            size: 8,
            order: Endian::Little,
        },
        attributes: Vec::new(),
        storage: Storage::Contiguous {
            offset: offset as u64,
        },
        fill: None,
    }
}

/// Runs a function with a file in memory.
fn with_input<T>(
    variables: Vec<Variable>,
    bytes: &dyn Bytes,
    run: impl FnOnce(ReductionInput<'_>) -> T,
) -> T {
    let header = Header {
        format: Format::Hdf5,
        attributes: Vec::new(),
        groups: Vec::new(),
        variables,
    };
    run(ReductionInput {
        name: "f",
        header: &header,
        store: VariableSource::File(bytes),
        bytes: Some(bytes),
    })
}

fn table(
    query: &ReductionQuery,
    variables: Vec<Variable>,
    bytes: &dyn Bytes,
) -> Result<ResultTable> {
    with_input(variables, bytes, |input| {
        local::reduce(query, &[input], |_| {})
    })
}

fn whole(operation: ReduceOperation, numbers: &[i64], fill: Option<i64>) -> Option<i128> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|one| one.to_le_bytes()).collect();
    let mut x = variable(
        "x",
        DataKind::Int,
        vec![dimension("i", numbers.len() as u64, false)],
        0,
    );
    x.attributes.extend(fill.map(|fill| Attribute {
        name: "_FillValue".into(),
        value: Value::Int(vec![fill]),
    }));
    let found = table(&ReductionQuery::new(operation, "x"), vec![x], &bytes).unwrap();
    match &found.fields[0].values {
        Column::Whole(all) => all[0],
        Column::Real(all) => panic!("{all:?}"),
    }
}

#[test]
fn reduction_compares_and_sums_64_bit_integers_exactly() {
    let near = [1, 1 << 53, (1 << 53) + 1];
    assert_eq!(whole(ReduceOperation::Count, &near, Some(1 << 53)), Some(2));
    assert_eq!(
        whole(ReduceOperation::Max, &near, Some(1 << 53)),
        Some((1 << 53) + 1)
    );
    assert_eq!(
        whole(ReduceOperation::Max, &near, Some((1 << 53) + 1)),
        Some(1 << 53)
    );
    let ends = [i64::MAX, i64::MAX, i64::MIN];
    assert_eq!(
        whole(ReduceOperation::Count, &ends, Some(i64::MAX)),
        Some(1)
    );
    assert_eq!(
        whole(ReduceOperation::Count, &ends, Some(i64::MIN + 1)),
        Some(3)
    );
    // The sum needs more than 64 bits; numpy's sum would wrap.
    let sum = 2 * i128::from(i64::MAX);
    assert_eq!(
        whole(ReduceOperation::Sum, &ends, Some(i64::MIN)),
        Some(sum)
    );
    assert_eq!(
        Column::Whole(vec![Some(sum)]).text(0).unwrap(),
        sum.to_string()
    );
}

#[test]
fn reduction_sums_over_64_bits_are_written_exactly_or_refused() {
    let bytes: Vec<u8> = [i64::MAX; 3]
        .iter()
        .flat_map(|one| one.to_le_bytes())
        .collect();
    let x = variable("x", DataKind::Int, vec![dimension("i", 3, false)], 0);
    let found = table(
        &ReductionQuery::new(ReduceOperation::Sum, "x"),
        vec![x],
        &bytes,
    )
    .unwrap();
    let json = found.json();
    assert_eq!(
        json["values"]["sum"],
        (3 * i128::from(i64::MAX)).to_string()
    );
    for form in [ResultFormat::Npy, ResultFormat::Netcdf] {
        found.write(form, &mut Vec::new()).unwrap_err();
    }
    found.write(ResultFormat::Csv, &mut Vec::new()).unwrap();
}

#[test]
fn reduction_of_empty_variable_counts_zero() {
    let of = |unlimited: bool, operation: ReduceOperation| {
        let x = variable(
            "x",
            DataKind::Float,
            vec![dimension("i", 0, unlimited), dimension("j", 3, false)],
            0,
        );
        table(
            &ReductionQuery::new(operation, "x"),
            vec![x],
            &Vec::<u8>::new(),
        )
    };
    for unlimited in [false, true] {
        let found = of(unlimited, ReduceOperation::Count).unwrap();
        assert_eq!(found.fields[0].values, Column::Whole(vec![Some(0)]));
    }
    let sum = of(true, ReduceOperation::Sum).unwrap();
    assert_eq!(sum.fields[0].values, Column::Real(vec![Some(0.0)]));
    for operation in [
        ReduceOperation::Mean,
        ReduceOperation::Max,
        ReduceOperation::Median,
    ] {
        let found = of(true, operation).unwrap();
        assert_eq!(
            found.fields[0].values,
            Column::Real(vec![None]),
            "{operation}"
        );
    }
    let refused = of(false, ReduceOperation::Sum).unwrap_err().to_string();
    assert!(refused.contains("x of f: a null dataspace"), "{refused}");
}

#[test]
fn weighted_mean_of_constant_is_constant() {
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
            variable("lat", DataKind::Float, vec![dimensions[1].clone()], 0),
            variable("x", DataKind::Float, dimensions, first),
        ];
        for over in [None, Some(vec!["time".to_owned(), "lat".to_owned()])] {
            let query = ReductionQuery {
                weights: Some("lat".into()),
                over,
                ..ReductionQuery::new(ReduceOperation::Mean, "x")
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

/// Returns a cube of 75 days from 20 January on, in which every seventh value is missing.
fn cube(kind: &DataKind) -> (Vec<Variable>, Vec<u8>) {
    let (times, lats, lons) = (75_u32, 4_u32, 3_u32);
    let mut bytes: Vec<u8> = (0..times)
        .flat_map(|day| f64::from(19 + day).to_le_bytes())
        .collect();
    let at_lat = bytes.len();
    bytes.extend((0..lats).flat_map(|place| f64::from(20 * place).to_le_bytes()));
    let at_x = bytes.len();
    for number in 0..times * lats * lons {
        let value = match number % 7 {
            6 => -1,
            _ => i64::from(number.wrapping_mul(2_654_435_761) >> 20),
        };
        #[expect(clippy::cast_precision_loss, reason = "they are below 2^12")]
        bytes.extend(match *kind {
            DataKind::Int => value.to_le_bytes(),
            _ => (value as f64 / 10.0).to_le_bytes(),
        });
    }
    let dimensions = [("time", times), ("lat", lats), ("lon", lons)];
    let dimensions: Vec<Dimension> = dimensions
        .iter()
        .map(|(name, size)| dimension(name, (*size).into(), false))
        .collect();
    let attribute = |name: &str, value| Attribute {
        name: name.into(),
        value,
    };
    let mut time = variable("time", DataKind::Float, vec![dimensions[0].clone()], 0);
    let since = Value::Text("days since 2001-01-01".into());
    time.attributes.push(attribute("units", since));
    let lat = variable("lat", DataKind::Float, vec![dimensions[1].clone()], at_lat);
    let mut x = variable("x", kind.clone(), dimensions, at_x);
    x.attributes.push(match *kind {
        DataKind::Int => attribute("_FillValue", Value::Int(vec![-1])),
        _ => attribute("_FillValue", Value::Float(vec![-0.1])),
    });
    (vec![time, lat, x], bytes)
}

fn words(text: &str) -> ReductionQuery {
    let value = |key: &str| {
        let mut words = text.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key).map_or("", |one| one.1)
    };
    let words = QueryText {
        operation: value("op"),
        variable: "x",
        select: value("where"),
        over: value("over"),
        by: value("by"),
        weights: value("weights"),
        quantiles: value("q"),
        bins: value("bins"),
        ..QueryText::default()
    };
    words.query().unwrap()
}

/// Returns the result computed at once, and the same result written in slabs of at most `most` cells.
fn both(kind: &DataKind, query: &ReductionQuery, most: u64) -> (ResultTable, Vec<u8>) {
    let (variables, bytes) = cube(kind);
    let whole = table(query, variables.clone(), &bytes).unwrap();
    let file = with_input(variables, &bytes, |input| {
        let plan = plan(query, &[input]).unwrap();
        let out = std::io::Cursor::new(Vec::new());
        let mut file = Netcdf::create(&plan.outline().unwrap(), out).unwrap();
        let mut cells = 0;
        for (at, slab) in plan.slabs_of(most) {
            assert!(slab.cells() <= most, "{at:?}");
            cells += slab.cells();
            let found = local::found(&slab, &[input], &mut |_| {}).unwrap();
            file.put(0, &at, &found).unwrap();
        }
        assert_eq!(cells, plan.cells());
        file.finish().unwrap().into_inner()
    });
    (whole, file)
}

#[test]
fn slabs_contain_same_values_as_whole_result() {
    for query in [
        "op=mean over=time by=month",
        "op=mean over=time,lon by=day weights=lat",
        "op=sum weights=lat over=lon",
        "op=stddev over=lat",
        "op=max over=lat where=time=::3,lon=[1:3]",
        "op=min by=climatological-month over=time",
        "op=quantile q=0.1,0.5 over=time by=month",
        "op=range by=season over=time,lat",
    ] {
        for most in [1, 2, 3, 5, 12, 100, 1000] {
            let (whole, file) = both(&DataKind::Float, &words(query), most);
            let mut expected = Vec::new();
            whole.write(ResultFormat::Netcdf, &mut expected).unwrap();
            assert_eq!(expected.len(), file.len(), "{query}, {most}");
            // The order of sums differs, so the last bit may differ.
            let values = file.len() - 8 * whole.fields.len() * whole.cells();
            let (one, other) = (expected.split_at(values), file.split_at(values));
            assert!(one.0 == other.0, "{query}, {most}: the headers differ");
            for (one, other) in one.1.chunks_exact(8).zip(other.1.chunks_exact(8)) {
                let [one, other] =
                    [one, other].map(|one| f64::from_be_bytes(one.try_into().unwrap()));
                let near = (one - other).abs() <= 1e-12 * one.abs().max(1.0);
                assert!(near, "{query}, {most}: {one} or {other}");
            }
        }
    }
}

#[test]
fn integer_slabs_are_written_with_64_bits_and_fill_value() {
    for query in [
        "op=max over=lat",
        "op=sum over=time by=month",
        "op=count over=time by=climatological-month",
        "op=histogram bins=0:4096:5 over=time,lon by=month",
        "op=min where=lat=20..40 over=lon",
    ] {
        for most in [1, 2, 3, 5, 12, 100] {
            let (whole, file) = both(&DataKind::Int, &words(query), most);
            let Column::Whole(all) = &whole.fields[0].values else {
                panic!("{query} has real numbers");
            };
            let fill = i128::from(netcdf::WHOLE_FILL);
            let all = all.iter().map(|one| one.unwrap_or(fill));
            let values = &file[file.len() - 8 * all.len()..];
            let values = values.chunks_exact(8);
            let values = values.map(|bytes| i64::from_be_bytes(bytes.try_into().unwrap()));
            assert!(all.eq(values.map(i128::from)), "{query}, {most}");
            let header = local::header("slabs", VariableSource::File(&file)).unwrap();
            let x = header.find("x").unwrap();
            let fill = x.attributes.iter().find(|one| one.name == "_FillValue");
            assert_eq!(
                fill.map(|one| &one.value),
                Some(&Value::Int(vec![netcdf::WHOLE_FILL]))
            );
        }
    }
}

#[test]
fn large_histogram_requires_given_ends() {
    let (variables, bytes) = cube(&DataKind::Float);
    let refused = with_input(variables, &bytes, |input| {
        let plan = plan(&words("op=histogram bins=5 over=time"), &[input]).unwrap();
        plan.outline().unwrap_err().to_string()
    });
    assert!(refused.contains("--bins LOW:HIGH:N"), "{refused}");
}
