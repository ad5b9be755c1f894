"""The papers' tables, with measured numbers beside them."""
