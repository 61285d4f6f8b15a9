//! `.safetensors` files.

use super::Problem;
use mk_core::{DType, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::io::{self, Write};

/// The matrix called `name`; without a name the only one, or the one that is called `expected`.
pub(crate) fn parse(bytes: &[u8], name: Option<&str>, expected: &str) -> Result<Tensor, Problem> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| {
        Problem::new(
            format!("this is not a whole .safetensors file: {e}"),
            "the file was cut off or is of another kind: write it again",
        )
    })?;
    let (name, view) = choose(&file, name, expected)?;
    let dtype = match view.dtype() {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        other => {
            return Err(Problem::new(
                format!("tensor '{name}' holds {other:?}, not BF16 or F16"),
                "convert it first, or store f32 as .npy, which is rounded to --dtype",
            ));
        }
    };
    let &[rows, cols] = view.shape() else {
        return Err(Problem::new(
            format!("tensor '{name}' has shape {:?}, not two dimensions", view.shape()),
            "store it as a matrix",
        ));
    };
    Ok(Tensor { dtype, rows: rows as u64, cols: cols as u64, bytes: view.data().to_vec() })
}

fn choose<'a>(
    file: &SafeTensors<'a>,
    name: Option<&str>,
    expected: &str,
) -> Result<(String, TensorView<'a>), Problem> {
    let mut names: Vec<&str> = file.names();
    names.sort_unstable();
    let shown = || {
        let some: Vec<_> = names.iter().take(8).copied().collect();
        let more = names.len() - some.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("'{}'{more}", some.join("', '"))
    };
    let get = |name: &str| file.tensor(name).ok().map(|v| (name.to_string(), v));
    if let Some(name) = name {
        let missing = || Problem::new(format!("it has no tensor '{name}'"), format!("it has {}", shown()));
        return get(name).ok_or_else(missing);
    }
    let mut matrices = file.iter().filter(|(_, v)| v.shape().len() == 2);
    match (matrices.next(), matrices.next()) {
        (Some((name, view)), None) => Ok((name.to_string(), view)),
        (None, _) if names.is_empty() => Err(Problem::new("it holds no tensor", "store a matrix in it")),
        (None, _) => Err(Problem::new(format!("it has no matrix, only {}", shown()), "store a matrix in it")),
        _ => get(expected).ok_or_else(|| {
            Problem::new(
                format!("it has several matrices, none of which is called '{expected}': {}", shown()),
                "say which one: FILE.safetensors:NAME",
            )
        }),
    }
}

/// One tensor, called `c`.
pub(super) fn write(tensor: &Tensor, to: &mut dyn Write) -> io::Result<()> {
    let dtype = match tensor.dtype {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F32 => Dtype::F32,
        DType::I32 => Dtype::I32,
    };
    let shape = vec![tensor.rows as usize, tensor.cols as usize];
    let view = TensorView::new(dtype, shape, &tensor.bytes).map_err(io::Error::other)?;
    let bytes = safetensors::serialize([("c", view)], None).map_err(io::Error::other)?;
    to.write_all(&bytes)
}
