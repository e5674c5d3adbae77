"""`python -m graphmill COMMAND …` is `graphmill COMMAND …`."""

from graphmill import main

if __name__ == "__main__":
    main()
