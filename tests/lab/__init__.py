"""Of the laboratory itself: its proxy, its servers, its fleet and its checker."""
