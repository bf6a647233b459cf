"""The measurements behind the documentation: each module measures one question and fills its tables into the pages."""
